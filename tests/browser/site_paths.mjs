// Lets node import what the static site of the browser tests serves: `node --import ./site_paths.mjs …`. Addresses
// that begin with /static/kvasir/ are files of the front end.

import { registerHooks } from "node:module";

const FRONTEND = new URL("../../frontend/static/kvasir/", import.meta.url);
const PREFIX = "/static/kvasir/";

registerHooks({
    resolve(specifier, context, next) {
        const isServed = specifier.startsWith(PREFIX);
        return next(isServed ? new URL(specifier.slice(PREFIX.length), FRONTEND).href : specifier, context);
    },
});
