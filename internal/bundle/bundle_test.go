package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/bundle"
)

func TestListKeepsWhatItNames(t *testing.T) {
	t.Parallel()
	allow := bundle.List{"cluster", "nodes.*.name", "any.**", "roll.*"}
	got, err := allow.YAML([]byte(`
cluster: c1 # with a comment
token: hush
any: {deep: [{below: 1}]}
nodes: [{name: cp1, secret: hush}, {name: wk1}]
roll: {strategy: auto, hooks: {beforeNode: [hush]}}
`))
	want := `'[left out]': 1 more
any:
    deep:
        - below: 1
cluster: c1
nodes:
    - '[left out]': 1 more
      name: cp1
    - name: wk1
roll:
    hooks:
        '[left out]': 1 more
    strategy: auto
`
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("%v, kept (-want +got):\n%s", err, diff)
	}
}

// The library's own error would quote the line.
func TestListSaysNothingOfBadYAML(t *testing.T) {
	t.Parallel()
	_, err := bundle.List{"a"}.YAML([]byte("a: 1\nb: [hush, hush\n"))
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("err = %v", err)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	allow := bundle.List{"msg", "hints.*"}
	line, ok := allow.Line([]byte(`{"msg":"step","header":"hush","hints":["a"]}`))
	if want := `{"[left out]":"1 more","hints":["a"],"msg":"step"}`; !ok || string(line) != want {
		t.Errorf("line = %s, %t, want %s", line, ok, want)
	}
	for _, none := range []string{`{"msg":"st`, `"hush"`, ``} {
		if line, ok := allow.Line([]byte(none)); ok {
			t.Errorf("%q became %s", none, line)
		}
	}
}

const secret = "6f1d3c58-aaaa-bbbb-cccc-0123456789ab"

func TestScrubber(t *testing.T) {
	t.Parallel()
	s := bundle.NewScrubber([]string{secret, "hunter2!\"<quoted>", "short"})
	for _, text := range []string{
		secret, base64.StdEncoding.EncodeToString([]byte(secret)), `{"error":"hunter2!\"\u003cquoted\u003e"}`, "hunter2%21%22%3Cquoted%3E",
	} {
		if got := s.String("before " + text + " after"); strings.Contains(got, text) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := s.String("a short word stays"); got != "a short word stays" {
		t.Errorf("a word became %q", got)
	}
}

func TestScrubberKnowsTheLookOfSecrets(t *testing.T) {
	t.Parallel()
	s := bundle.NewScrubber(nil)
	for text, want := range map[string]string{
		"Authorization: PVEAPIToken=root@pam!x=abc-def":                             "Authorization: [redacted]",
		"token root@pam!x=abc-def, refused":                                         "token root@pam!x=[redacted], refused",
		"sent Bearer abcdef0123456789 to it":                                        "sent Bearer [redacted] to it",
		"GET https://u:pw@h.example/a?sig=abc failed":                               "GET https://[redacted]@h.example/a?[redacted] failed",
		`{"cipassword":"hush","cores":2}`:                                           `{"cipassword":"[redacted]","cores":2}`,
		"password: hush":                                                            "password: [redacted]",
		"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nrest":         "[redacted]\nrest",
		`{"a":"-----BEGIN KEY-----\nMII","b":1}`:                                    `{"a":"[redacted]","b":1}`,
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKz me@here":                           "[redacted] me@here",
		"join with abcdef.0123456789abcdef":                                         "join with [redacted]",
		`{"error":"hook \"x\": ./x ended with 1: hush hush"}`:                       `{"error":"hook \"x\": ./x ended with 1: [left out]"}`,
		strings.Repeat("Ab1/", 30) + "==":                                           "[redacted]",
		"sha256-" + strings.Repeat("ab", 32):                                        "sha256-" + strings.Repeat("ab", 32),
		"roll/workers/wk1/take-down/drain: gave up after 10m0s; last seen: pod a/b": "roll/workers/wk1/take-down/drain: gave up after 10m0s; last seen: pod a/b",
	} {
		if got := s.String(text); got != want {
			t.Errorf("%q became\n%q, want\n%q", text, got, want)
		}
	}
}

func TestSecretsIn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a1B2", 12)
	got := bundle.SecretsIn([]byte(`
machine: {token: abc.def, ca: {crt: short, key: ` + long + `}}
cluster: {secret: hush, aescbcEncryptionSecret: hush2}
taints: [{key: node-role}]
---
users: [{user: {client-key-data: hush3, client-certificate-data: cert}}]
`))
	want := map[string]bool{"abc.def": true, long: true, "hush": true, "hush2": true, "hush3": true, "cert": true}
	for _, s := range got {
		if !want[s] {
			t.Errorf("%q is no secret", s)
		}
		delete(want, s)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
	if got := bundle.SecretsIn([]byte("{[")); got != nil {
		t.Errorf("secrets of no YAML: %q", got)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	b := bundle.New("dir", made, []string{secret})
	b.Text("b.txt", []byte("with "+secret))
	b.Text("empty.txt", []byte("\n"))
	if err := b.JSON("a.json", map[string]any{"x": 1, "y": secret}, bundle.List{"x"}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, errText := io.ReadAll(r)
		if err := errors.Join(err, errText); err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 || !h.ModTime.Equal(made) {
			t.Errorf("%s: mode %o, made %s", h.Name, h.Mode, h.ModTime)
		}
		got[h.Name] = string(text)
	}
	want := map[string]string{"dir/a.json": "{\n  \"[left out]\": \"1 more\",\n  \"x\": 1\n}\n", "dir/b.txt": "with [redacted]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
