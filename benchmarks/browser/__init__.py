"""Parts of `bench_webgpu`: pages, WebAssembly and GPU measured in node and Chromium.

Only that benchmark enters.
It never asserts a time.
"""
