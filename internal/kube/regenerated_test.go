package kube

import (
	"os"
	"strings"
	"testing"
)

// The list of paths without data is shown to users, with the reasons.
func TestRegeneratedPathsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/notes/local-data.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range regeneratedPaths {
		who := map[string]string{"DaemonSet": "DaemonSets", "static": "static pods", "": "any pod"}[r.pods]
		if r.namespace != "" {
			who += " of `" + r.namespace + "`"
		}
		if row := "- `" + r.path + "`, " + who + ": " + r.why + "\n"; !strings.Contains(string(page), row) {
			t.Errorf("docs/notes/local-data.md lacks %s", row)
		}
	}
}
