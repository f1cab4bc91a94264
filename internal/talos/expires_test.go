package talos

import (
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestExpires(t *testing.T) {
	t.Parallel()
	c, err := talosapi.NewCluster("lab", "https://127.42.7.1:6443", "v1.13.9", "v1.35.4")
	if err != nil {
		t.Fatal(err)
	}
	talosconfig, err := c.Talosconfig(role.Admin, "127.42.7.31")
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(Expires(talosconfig)); left < time.Hour {
		t.Errorf("it ends in %s", left)
	}
	for _, none := range []string{"][", "context: gone\n", "context: a\ncontexts: {a: {endpoints: [127.42.7.31]}}\n"} {
		if end := Expires([]byte(none)); !end.IsZero() {
			t.Errorf("%q ends on %s", none, end)
		}
	}
}
