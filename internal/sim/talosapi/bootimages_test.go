package talosapi_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestDisksHoldTheInstallersImage: a boot entry is the installer's file, byte for byte,
// whoever wrote it; a large one is stored outside of the disk.
func TestDisksHoldTheInstallersImage(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	inLab(t, func(t *testing.T, l *lab) {
		cp, c := l.node(image("old"))
		const file = "/usr/local/sbin/iscsid"
		large := make([]byte, 2<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(large) // never fails
		img := image("new")
		img.Extensions[0].Files[file] = large
		l.installers[newRef] = img
		entry := func(name string, img artefact.Image) string {
			return fmt.Sprintf("%s %.8x", name, sha256.Sum256(ukiOf(t, img)))
		}

		mustInstall(t, c, newRef)
		wk, open := l.blank(workerAddr, img)
		apply(t, open, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
		l.running(workerAddr)
		for _, tc := range []struct {
			b    *box
			want string
		}{
			{cp, "EFI [" + entry("Talos-v1.13.9.efi", image("old")) + ", " + entry("Talos-v1.13.9~1.efi", img) + "];"},
			{wk, "EFI [" + entry("Talos-v1.13.9.efi", img) + "];"},
		} {
			media := tc.b.drives[0].Media
			if got := talosapi.Describe(media.Bytes()); !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s has %s\nwant %s", tc.b.hw.Name, got, tc.want)
			}
			if got := media.Size(); got > 64<<10 {
				t.Errorf("the disk of %s holds %d bytes", tc.b.hw.Name, got)
			}
		}
		got, err := readFile(t.Context(), l.client(workerAddr, role.Admin), file)
		if err != nil || string(got) != string(large) {
			t.Errorf("the installed system has %d bytes, err = %v", len(got), err)
		}
		list, err := c.ImageClient.List(t.Context(), &machine.ImageServiceListRequest{Containerd: criSystem()})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := list.Recv(); err != nil || m.GetSize() != int64(len(ukiOf(t, img))) {
			t.Errorf("the pulled image has %d bytes, err = %v", m.GetSize(), err)
		}
	})
}
