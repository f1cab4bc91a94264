package talos_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
)

// TestConfigpatcher: why a node's configuration is not patched by Talos' configpatcher. Once it keeps all of this, it should be.
func TestConfigpatcher(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(mainDocument, "  install:\n    diskSelector: {type: nvme}\n    image: old\n")
	change, err := configpatcher.LoadPatch([]byte("machine: {install: {diskSelector: {wwid: x}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	apply := func(config string) (string, error) {
		out, err := configpatcher.Apply(configpatcher.WithBytes([]byte(config)), []configpatcher.Patch{change})
		if err != nil {
			return "", err
		}
		b, err := out.Bytes()
		return string(b), err
	}
	got, err := apply(config)
	if err != nil {
		t.Fatal(err)
	}
	for text, is := range map[string]bool{"type: worker": true, "# a worker": false, "version: \"\"": true, "certSANs: []": true, "wwid: x": true, "type: nvme": true} {
		if strings.Contains(got, text) != is {
			t.Errorf("has %q: %t, in:\n%s", text, !is, got)
		}
	}
	if _, err := apply(config + "---\napiVersion: v1alpha1\nkind: LaterConfig\n"); err == nil {
		t.Error("it takes a document of a kind that it does not know")
	}
}
