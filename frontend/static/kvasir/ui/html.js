// One import for pages that draw with preact: `html` templates, `render` and the hooks. Pages alone call it; modules of
// the worker never do, since they have no import map and draw nothing.

import htm from "htm";
import { h, render } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

/** Tagged template that makes preact's nodes. */
export const html = htm.bind(h);
export { render, useCallback, useEffect, useMemo, useRef, useState };
