// Sets the chosen theme before the first paint, so that nothing flashes. A classic script in base.html's head; the
// button that chooses is in frame.js. Without a choice the device decides.
{
    const chosen = localStorage.getItem("kvasir-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
