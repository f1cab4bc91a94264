package talosapi_test

import (
	"io"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestNamesFollowTheIdentity: machine-id, IQN and NQN stay over a reboot, and are others on a new system disk.
func TestNamesFollowTheIdentity(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		read := func(c *client.Client) (names []string) {
			t.Helper()
			for _, at := range []string{"/etc/machine-id", "/etc/iscsi/initiatorname.iscsi", "/etc/nvme/hostid", "/etc/nvme/hostnqn"} {
				r, err := c.Read(t.Context(), at)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, strings.TrimSpace(string(text)))
			}
			return names
		}
		create := func() (*box, []string) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"))
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
			l.running(workerAddr)
			return box, read(l.client(workerAddr, role.Admin))
		}
		box, first := create()
		if first[1] != "InitiatorName=iqn.2017-11.dev.talos:"+first[0] || first[3] != "nqn.2017-11.dev.talos:uuid:"+first[2] || len(first[0]) != 32 {
			t.Errorf("names: %q", first)
		}
		c := l.client(workerAddr, role.Admin)
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		want(t, "after a reboot", strings.Join(read(l.client(workerAddr, role.Admin)), " "), strings.Join(first, " "))
		box.guest.Kill()
		box, second := create()
		for i := range first {
			if first[i] == second[i] {
				t.Errorf("%q is that of the old system disk", second[i])
			}
		}
		box.guest.Kill()
	})
}
