package frame

import (
	"html/template"
	"net/http"
	"strings"

	"github.com/russross/blackfriday/v2"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
)

// runbook is a page of the list.
type runbook struct{ Code, Title string }

func (f *Frame) runbooksPage(w http.ResponseWriter, _ *http.Request) {
	var list []runbook
	for _, code := range fault.AllCodes() {
		list = append(list, runbook{string(code), runbooks.Title(string(code))})
	}
	f.Render(w, http.StatusOK, "runbooks", View{Title: "Runbooks", Body: list})
}

func (f *Frame) runbookPage(w http.ResponseWriter, r *http.Request) {
	code := r.PathValue("code")
	text, found := runbooks.Page(code)
	if !found {
		f.Missing(w, "there is no such runbook")
		return
	}
	heading, text, _ := strings.Cut(text, "\n")
	f.Render(w, http.StatusOK, "runbook", View{Title: strings.TrimPrefix(heading, "# "), Body: markdown(text)})
}

// markdown renders a page that is built in. Its links to other runbooks stay here, those to
// the rest of the documentation lead to where it is published.
func markdown(text string) template.HTML {
	html := blackfriday.NewHTMLRenderer(blackfriday.HTMLRendererParameters{Flags: blackfriday.SkipHTML})
	tree := blackfriday.New(blackfriday.WithExtensions(blackfriday.CommonExtensions)).Parse([]byte(text))
	var out strings.Builder
	tree.Walk(func(n *blackfriday.Node, entering bool) blackfriday.WalkStatus {
		if n.Type == blackfriday.Link && entering {
			n.Destination = []byte(linked(string(n.Destination)))
		}
		return html.RenderNode(&out, n, entering)
	})
	return template.HTML(out.String()) //nolint:gosec // from a page that is built in
}

func linked(to string) string {
	name, _, _ := strings.Cut(to, "#")
	code, isPage := strings.CutSuffix(name, ".md")
	_, here := runbooks.Page(code)
	switch {
	case isPage && here:
		return code
	case name == "", strings.Contains(to, "://"):
		return to
	}
	return strings.TrimSuffix(runbooks.URL(""), ".md") + to
}
