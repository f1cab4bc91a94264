package kube

import (
	"os"
	"strings"
	"testing"
)

// Users see which paths are taken to hold no data: no fewer and no more.
func TestRegeneratedPathsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/notes/local-data.md")
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, r := range regeneratedPaths {
		who := map[string]string{"DaemonSet": "DaemonSets", "static": "static pods", "": "any pod"}[r.pods]
		if r.namespace != "" {
			who += " of `" + r.namespace + "`"
		}
		if by[who] != "" {
			by[who] += ", "
		}
		by[who] += "`" + r.path + "`"
	}
	text := strings.ReplaceAll(string(page), "\n  ", " ")
	for who, paths := range by {
		if row := "- by " + who + ": " + paths + "\n"; !strings.Contains(text, row) {
			t.Errorf("docs/notes/local-data.md lacks %s", row)
		}
	}
}
