package config_test

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/config"
)

// TestStorage: one word is for all systems, a section for some, and what is written is read as the same.
func TestStorage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		off     string
		written string
	}{
		"on":                            {"", "on"},
		"off":                           {"longhorn ceph linstor mayastor", "off"},
		"{linstor: off}":                {"linstor", "longhorn: on, ceph: on, linstor: off, mayastor: on"},
		"{ceph: on}":                    {"", "on"},
		"{longhorn: off, ceph: off}":    {"longhorn ceph", "longhorn: off, ceph: off, linstor: on, mayastor: on"},
		"{mayastor: off, longhorn: on}": {"mayastor", "longhorn: on, ceph: on, linstor: on, mayastor: off"},
	} {
		c, err := config.Parse("recast.yaml", []byte(small+"roll: {storage: "+text+"}\n"), options(map[string]string{"HOME": "/home/me"}))
		if err != nil {
			t.Fatal(err)
		}
		if off := strings.Join(c.Roll.Storage.Off(), " "); off != want.off {
			t.Errorf("%s: off is %q, want %q", text, off, want.off)
		}
		b, err := yaml.Dump(c.Roll.Storage)
		if written := strings.Join(slices.Collect(strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(string(b)), "'", ""), "\n")), ", "); err != nil || written != want.written {
			t.Errorf("%s is written as %q, %v", text, written, err)
		}
	}
}
