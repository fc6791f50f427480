"""Frozen digests of the self-test, by kernel, case and part: see `selftest`.

Written by tests/golden/make_selftest.py. They change only with the version of a kernel: a difference is a defect of the
build, never a reason to edit this file.
"""

FROZEN_DIGESTS: dict[str, dict[str, dict[str, str]]] = {
    "kx1": {
        "Q4_K Q4_K Q6_K": {
            "encoded rows": "d4d8ede321a7848aa3fe75439cd113de21bd297fb9234fdd8c9735db4eec8329",
            "outputs of the first expert (plain)": "af8498ed31f4f4825a5c5b92ffc1e46f48429da475d95118021310e3abf4c3a1",
            "outputs of the second expert (wild)": "f10f6b458cd7bebf53d25454fb3d2252017fd13ea07443a1d2c036f7ee23717c",
        },
        "Q5_K Q5_K Q5_K": {
            "encoded rows": "d9f51dda158d0c07e1b67b88b86a6961d2108ec3491d25d27442bd610a87558f",
            "outputs of the first expert (plain)": "a6e1f5775e5b153f60bca82b820cf10e643487d52e3a407d4ad6e203b680f953",
            "outputs of the second expert (high)": "2f5bad2dc759ec7ec744e1c98b99242a877dc77af9e514d973d9efd76a8b6c7c",
        },
        "Q6_K Q6_K Q4_K": {
            "encoded rows": "77febbb83eb6779d78c14867cfde4c87a814bf16eae93843a68f709156837bf7",
            "outputs of the first expert (plain)": "e74ac21ee8740eb3830d8e705faeb48f984a67cb1e9b3631ceb2970ab7f20477",
            "outputs of the second expert (low)": "37c63e58ff9e8ff41b2b13029d213b30dfcfa669992c87d224856b52b3590088",
        },
        "Q8_0 Q8_0 Q8_0": {
            "encoded rows": "db4c4e998d78d3c530e8070a5aca68984345c58d080a2ef9ddbeed41a6a6bc9c",
            "outputs of the first expert (plain)": "2d70d0f766102825a6aaf31a1d35f1cb00c6716f534918a21a398c13c0ad7775",
            "outputs of the second expert (wild)": "ed0e4b69e07baa565eb03b5659b19f8d3c645018a25431afbbf8bc87bcbc2f05",
        },
    },
    "float": {
        "F32 F32 F32": {
            "encoded rows": "5fed5fab7f35d0da53fbc17f53e133753acb4c823b8fac6da36ee3b77e657576",
            "outputs of the first expert (plain)": "48776b326ca83952c289a29296f23428ef4fb78dead633968cd53242ad492a85",
            "outputs of the second expert (plain)": "d9a2c578cf3221948e529a5a0d6702472ee1f13bc54b58e8e7a847666836a9ad",
        },
        "F16 F16 F16": {
            "encoded rows": "f467e0a4d84789af44e53256e750b3a8ad3fed194459b90d79983f6fffff9f36",
            "outputs of the first expert (plain)": "a878d6f487b2ae3419804087921d6f3d07e9e3dfb7bcf3c857b9e61bd0abe4dd",
            "outputs of the second expert (plain)": "ecb62ee6fb99caf39e598cb02b86eca7ce705c55de8673d324a01a7d8be05984",
        },
        "BF16 BF16 BF16": {
            "encoded rows": "c6966e2285833f5266c087c3b52c0ebb9681d2f95f62e490b189a27ca78ebdde",
            "outputs of the first expert (plain)": "7ec8269f903b01416046f445bba77a67adf24afdf3d41e6e5375113064fd8093",
            "outputs of the second expert (plain)": "95ebec51a2b87386f1d03ffe3a9b8355faceb33f6dc84d793973d3bf30852725",
        },
        "Q4_K Q8_0 Q6_K": {
            "encoded rows": "cb225a5e9cbfd0ce9ba7207e1d1316b7a25b485a9a06fce5c740776e38bca8b0",
            "outputs of the first expert (plain)": "04df71b5b4ad493997b6375f8c4fca3d7c5ffb0af2515ada814d17dae9549d39",
            "outputs of the second expert (plain)": "ec2ff8c0412322ab892c24391fe5f7c7e23ecb4648d5c9250f6310a5fc8361bb",
        },
    },
}
