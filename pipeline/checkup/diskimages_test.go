package checkup

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
)

// TestDiskImages: storages for disk images are checked as those for ISOs are; where machines can
// boot the ISO instead, it is no problem that one can't take disk images.
func TestDiskImages(t *testing.T) {
	t.Parallel()
	takes := []string{"iso", "import"}
	for name, tc := range map[string]struct {
		boot    string
		content []string
		state   State
		seen    string
	}{
		"ISOs":           {config.BootISO, takes, "", ""},
		"disks":          {config.BootDisk, takes, OK, "50 GiB free"},
		"disks, none":    {config.BootDisk, takes[:1], Problem, "does not take disk images: its content is iso; content import needs Proxmox VE 8.3 and a storage of files"},
		"auto":           {config.BootAuto, takes, OK, "50 GiB free"},
		"auto, the ISOs": {config.BootAuto, takes[:1], Warning, "its content is iso, so machines boot the ISO"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite()
			s.change("isos", func(i *images.StorageInfo) { i.Content = tc.content })
			c := configOf(t)
			if c.Images.Boot = tc.boot; tc.boot != config.BootISO {
				c.Images.Disk.Storage = []string{"isos"}
			}
			res := diagnoseWith(t, c, s)
			i := slices.IndexFunc(res.Checks, func(c Check) bool { return c.What == "disk image storage isos on pve1" })
			if i < 0 && tc.state != "" || i >= 0 && (res.Checks[i].State != tc.state || !strings.Contains(res.Checks[i].Seen, tc.seen)) {
				t.Errorf("want %q: …%s…; got:\n%s", tc.state, tc.seen, printed(res))
			}
			granted := slices.ContainsFunc(res.Checks, func(c Check) bool {
				return strings.Contains(c.Seen, "Datastore.AllocateTemplate") && c.What == "/storage/isos"
			})
			if !granted {
				t.Errorf("no privileges on the storage:\n%s", printed(res))
			}
		})
	}
}
