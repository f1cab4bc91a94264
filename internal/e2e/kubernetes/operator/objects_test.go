package operator

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// secret has what recast needs to reach a lab.
func secret(t *testing.T, l lab, name, token string) string {
	t.Helper()
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s}
data: {token: %s, talosconfig: %s, kubeconfig: %s}
`, name, encode(token), encode(l.file(t, "talosconfig")), encode(l.file(t, "kubeconfig")))
}

// files has recast.yaml and the schematics of a lab, and recast.lock if that is to come from there.
func files(t *testing.T, l lab, name string, replace ...string) string {
	t.Helper()
	data := map[string]string{"recast.yaml": strings.NewReplacer(replace...).Replace(l.file(t, "recast.yaml"))}
	entries := must(os.ReadDir(filepath.Join(l.dir, "schematics")))(t)
	for _, e := range entries {
		data["schematics__"+e.Name()] = l.file(t, "schematics/"+e.Name())
	}
	return configMap(t, name, data)
}

func configMap(t *testing.T, name string, data map[string]string) string {
	t.Helper()
	return string(must(yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data}))(t))
}

// cluster is the TalosCluster of the documentation, of that name, with further lines of its spec.
func (h house) cluster(name string, more ...string) string {
	h.t.Helper()
	const begin, end = "apiVersion: recast.dev/v1alpha1\nkind: TalosCluster\n", "```"
	_, text, found := strings.Cut(h.page, begin)
	text, _, closed := strings.Cut(text, end)
	if !found || !closed {
		h.t.Fatal("docs/howto/operator.md has no TalosCluster")
	}
	text = strings.NewReplacer("name: prod\n", "name: "+name+"\n", "name: prod}", "name: "+name+"}", "name: prod,", "name: "+name+",").Replace(text)
	for _, line := range append([]string{"windows: []"}, more...) {
		key, _, _ := strings.Cut(line, ":")
		var kept []string
		for l := range strings.Lines(text) { // a key of the page is replaced
			if !strings.HasPrefix(l, "  "+key+":") {
				kept = append(kept, l)
			}
		}
		text = strings.Join(kept, "") + "  " + line + "\n"
	}
	return begin + text
}
