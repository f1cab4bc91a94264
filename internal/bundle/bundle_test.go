package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/bundle"
	"github.com/recast-sh/recast/internal/sim/must"
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
	diff := cmp.Diff(want, string(got))
	must.Hold(t, diff == "" && err == nil, "%v, kept (-want +got):\n%s", err, diff)
}

// The library's own error would quote the line.
func TestListDoesNotQuoteBadYAML(t *testing.T) {
	t.Parallel()
	_, err := bundle.List{"a"}.YAML([]byte("a: 1\nb: [hush, hush\n"))
	must.Hold(t, err != nil && !strings.Contains(err.Error(), "hush"), "err = %v", err)
}

func TestLine(t *testing.T) {
	t.Parallel()
	allow := bundle.List{"msg", "hints.*"}
	line, ok := allow.Line([]byte(`{"msg":"step","header":"hush","hints":["a"]}`))
	want := `{"[left out]":"1 more","hints":["a"],"msg":"step"}`
	must.Hold(t, ok && string(line) == want, "line = %s, %t, want %s", line, ok, want)
	for _, none := range []string{`{"msg":"st`, `"hush"`, ``} {
		if line, ok := allow.Line([]byte(none)); ok {
			t.Errorf("%q became %s", none, line)
		}
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	const secret = "6f1d3c58-aaaa-bbbb-cccc-0123456789ab"
	b := bundle.New("dir", made, []string{secret})
	b.Text("b.txt", []byte("with "+secret+": ./x ended with 1: hush hush\nit goes on"))
	b.Text("empty.txt", []byte("\n"))
	b.Lines("c.jsonl", []byte(`{"error":"a: hook \"./x hush\": ./x was stopped","token":"hush"}`+"\n"+`{"error":"gate \"./x hush\": hush\nGet \"https://h/?hush\": dial, it said last: hush"}`+"\n"))
	must.Do(t, b.JSON("a.json", map[string]any{"x": 1, "y": secret}, bundle.List{"x"}))
	var out bytes.Buffer
	must.Do(t, b.Write(&out))
	z := must.Get(gzip.NewReader(&out))(t)
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, errText := io.ReadAll(r)
		must.Do(t, errors.Join(err, errText))
		must.Hold(t, h.Mode == 0o600 && h.ModTime.Equal(made), "%s: mode %o, made %s", h.Name, h.Mode, h.ModTime)
		got[h.Name] = string(text)
	}
	want := map[string]string{
		"dir/a.json": "{\n  \"[left out]\": \"1 more\",\n  \"x\": 1\n}\n", "dir/b.txt": "with [redacted]: ./x ended with 1: [left out]\nit goes on",
		"dir/c.jsonl": `{"error":"a: hook [left out]","token":"[redacted]"}` + "\n" + `{"error":"gate [left out]\nGet \"https://h/?[redacted]\": dial, it said last: [left out]"}` + "\n",
	}
	must.Equal(t, "files", want, got)
}
