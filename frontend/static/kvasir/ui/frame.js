// The frame that all pages share: the theme button. base.html loads it.

const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

/** @typedef {typeof THEMES[number]} Theme */

/** @returns {Theme} the visitor's choice */
function chosenTheme() {
    const stored = localStorage.getItem("kvasir-theme");
    return stored === "light" || stored === "dark" ? stored : "auto";
}

/**
 * Apply a theme and store it.
 * @param {Theme} theme
 */
function setTheme(theme) {
    if (theme === "auto") {
        localStorage.removeItem("kvasir-theme");
        delete document.documentElement.dataset.theme;
    } else {
        localStorage.setItem("kvasir-theme", theme);
        document.documentElement.dataset.theme = theme;
    }
    document.dispatchEvent(new CustomEvent("kvasir-theme", { detail: theme })); // canvases draw again
}

/** @param {HTMLElement} button */
function showTheme(button) {
    const theme = chosenTheme();
    button.textContent = SIGNS[theme];
    button.title = button.dataset[theme] ?? theme;
    button.setAttribute("aria-label", button.title);
}

const button = document.getElementById("theme");
if (button) {
    showTheme(button);
    button.addEventListener("click", () => {
        setTheme(THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
        showTheme(button);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        document.dispatchEvent(new CustomEvent("kvasir-theme", { detail: chosenTheme() }));
    });
}
