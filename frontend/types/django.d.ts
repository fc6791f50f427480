// What Django's JavaScript catalogue (/jsi18n, loaded by base.html) puts into pages. Workers do not have it.
declare function gettext(text: string): string;
declare function ngettext(singular: string, plural: string, count: number): string;
declare function interpolate(format: string, values: readonly unknown[]): string;
declare function interpolate(format: string, values: Readonly<Record<string, unknown>>, named: true): string;
declare function get_format(name: string): string | number | readonly string[];
