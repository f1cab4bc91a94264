// Package runbooks embeds a page for each [fault.Code], so that it can be read offline.
// [Page] returns the text of a code's page, [URL] where it is on the web.
package runbooks

import (
	"embed"
	"strings"
)

//go:embed *.md
var pages embed.FS

// URL is the web address of the page of a code.
func URL(code string) string {
	return "https://github.com/recast-sh/recast/blob/main/docs/runbooks/" + code + ".md"
}

// Page is the page of a code, in Markdown.
func Page(code string) (text string, found bool) {
	b, err := pages.ReadFile(code + ".md")
	return string(b), err == nil && code != index
}

// index is the list of the pages.
const index = "README"

// Title is the heading of the page of a code, without the code.
func Title(code string) string {
	text, _ := Page(code)
	heading, _, _ := strings.Cut(text, "\n")
	_, title, _ := strings.Cut(heading, ": ")
	return title
}
