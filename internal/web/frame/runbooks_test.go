package frame

import "testing"

// Links of runbooks lead to another one, or to where the documentation is published.
func TestLinked(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"no-join.md": "no-join", "../notes/proxmox.md#undo-by-hand": "https://github.com/recast-sh/recast/blob/main/docs/runbooks/../notes/proxmox.md#undo-by-hand",
		"https://example.com/a.md": "https://example.com/a.md", "#here": "#here",
	} {
		if got := linked(to); got != want {
			t.Errorf("%s became %s, want %s", to, got, want)
		}
	}
}
