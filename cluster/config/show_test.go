package config_test

import (
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/encoder"

	"github.com/recast-sh/recast/cluster/config"
)

func TestRedacted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"by path":         {"cluster:\n  secret: abcdefghijkl # abcdefghijkl\n  name: c1\n", "cluster:\n    secret: '[redacted value]'\n    name: c1\n"},
		"by value":        {"cluster: {token: abc.defghijkl}\nother: {note: abc.defghijkl}\n", "cluster: {token: '[redacted value]'}\nother: {note: '[redacted value]'}\n"},
		"of a list":       {"machine:\n  env: [\"A=secretvalue\", \"B=2\"]\n", "machine:\n    env: ['A=[redacted]', 'B=[redacted]']\n"},
		"of a file":       {"machine:\n  files:\n    - content: |\n        a\n        b\n      path: /etc/x\n", "machine:\n    files:\n        - content: '[redacted value]'\n          path: /etc/x\n"},
		"many lines":      {"notes: |\n  one\n  two\n", "notes: |\n    one\n    two\n"},
		"order, numbers":  {"b: 0644\na: \"1\"\nc: ~\nd: \"\"\n", "b: 0644\na: \"1\"\nc: ~\nd: \"\"\n"},
		"documents":       {"# none\n---\na: 1\n---\nkind: X\nb: 2\n", "a: 1\n---\nkind: X\nb: 2\n"},
		"an anchor":       {"a: &x longsecretvalue\ncluster: {token: *x}\n", "a: &x '[redacted value]'\ncluster: {token: *x}\n"},
		"nothing":         {"", ""},
		"a key is secret": {"cluster: {token: abcdefghijkl}\nx: {abcdefghijkl: 1}\n", "cluster: {token: '[redacted value]'}\nx: {'[redacted value]': 1}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Redacted([]byte(c.text))
			if err != nil || string(got) != c.want {
				t.Errorf("%v, %q, want %q", err, got, c.want)
			}
		})
	}
	if _, err := config.Redacted([]byte("a: [secretvalue")); err == nil || strings.Contains(err.Error(), "secretvalue") {
		t.Errorf("err = %v", err)
	}
}

// TestRedactedOfGenerated: what Talos generates is shown without its secrets, and is the same but
// for those.
func TestRedactedOfGenerated(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		for _, kind := range kinds {
			b := bundle(t, version)
			text := encoded(t, generated(t, version, kind, b), encoder.CommentsAll)
			shown, err := config.Redacted([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range secretsOf(t, b) {
				if strings.Contains(string(shown), secret) {
					t.Errorf("%s of %s shows %s", kind, version, secret)
				}
			}
			for _, c := range config.Compare(parse(t, text), parse(t, string(shown))) {
				if !strings.Contains(c.Found+c.Wanted, "[redacted") {
					t.Errorf("%s of %s: %+v", kind, version, c)
				}
			}
		}
	}
}
