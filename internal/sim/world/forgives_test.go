package world

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestFreeingAMissingVolume deletes a drive whose volume is missing.
func TestFreeingAMissingVolume(t *testing.T) {
	t.Parallel()
	for kind, forgiven := range map[string]bool{"dir": true, "lvmthin": true, "zfspool": true, "lvm": false, "rbd": false} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := New(Options{})
				defer w.Close()
				w.AddHost("pve1")
				w.AddStorage(Storage{ID: "data", Type: kind, Content: []string{"images"}})
				must.Do(t, w.DefineVM("pve1", 100, map[string]string{"unused0": "data:1"}, nil))
				volid := w.VMs()[0].Config["unused0"]
				upid, err := w.DeleteVolume("root@pam", "pve1", volid)
				if err != nil {
					t.Fatal(err)
				}
				if task, _ := w.WaitTask(upid); task.ExitStatus != "OK" {
					t.Fatal(task.ExitStatus)
				}
				err = w.SetConfig("root@pam", "pve1", ChangeRequest{ID: 100, Delete: []string{"unused0"}})
				if forgiven != (err == nil) || err != nil && !strings.Contains(err.Error(), "does not exist") {
					t.Errorf("drop unused0: %v", err)
				}
			})
		})
	}
}
