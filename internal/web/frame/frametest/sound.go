// Package frametest holds what tests of pages share.
package frametest

import (
	"regexp"
	"strings"
	"testing"
)

// RequireSound requires that elements are closed, that IDs are unique, and that the page loads nothing from elsewhere
// and holds no script or style, which its policy would refuse.
func RequireSound(t testing.TB, page string, wrong ...string) {
	t.Helper()
	for _, text := range append([]string{"ZgotmplZ", "<no value>", "%!", "0001-01-01", " style=", "<style", " onclick="}, wrong...) {
		if strings.Contains(page, text) {
			t.Errorf("the page holds %q:\n%s", text, page)
		}
	}
	if found := regexp.MustCompile(`\b(src|href|action)="[^"/#d][^"]*:`).FindString(strings.ReplaceAll(page, "https://github.com/recast-sh/", "/")); found != "" {
		t.Errorf("the page leads elsewhere: %s", found)
	}
	for _, tag := range []string{"html", "head", "body", "main", "header", "nav", "section", "article", "div", "form", "button", "table", "caption", "thead", "tbody", "tr", "td", "th", "ul", "li", "dl", "p", "span", "pre", "progress"} {
		opened := len(regexp.MustCompile(`<`+tag+`[ >]`).FindAllString(page, -1))
		if closed := strings.Count(page, "</"+tag+">"); opened != closed {
			t.Errorf("%d <%s>, %d </%s>", opened, tag, closed, tag)
		}
	}
	if tables := strings.Count(page, "<table"); tables != strings.Count(page, "<caption") {
		t.Error("a table has no caption")
	}
	known := map[string]bool{}
	for _, id := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if known[id[1]] {
			t.Errorf("two elements have the ID %s", id[1])
		}
		known[id[1]] = true
	}
	if strings.Count(page, "<h1") != 1 || !known["main"] || !strings.Contains(page, `lang="en"`) {
		t.Errorf("no single heading, or nothing to skip to")
	}
}
