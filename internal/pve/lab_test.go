package pve

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// obedient is a guest that powers off on request, after a while.
type obedient struct{ hw *world.Hardware }

func (g obedient) PowerOn(hw *world.Hardware) world.Guest { return obedient{hw} }
func (g obedient) Shutdown()                              { time.AfterFunc(5*time.Second, g.hw.PowerOff) }
func (g obedient) Kill()                                  {}

// lab is a simulated Proxmox host, and our client with the privileges of an ordinary token.
type lab struct {
	*Client
	world    *world.World
	recorder *record.Recorder
}

func newLab(t *testing.T) lab {
	t.Helper()
	w := world.New(world.Options{Cluster: "lab"})
	t.Cleanup(w.Close)
	w.SetFirmware(obedient{})
	for _, host := range []string{"pve1", "pve2"} {
		w.AddHost(host)
	}
	w.AddStorage(world.Storage{ID: "isos", Type: "cephfs", Shared: true, Content: []string{"iso"}, Capacity: 1 << 30})
	w.AddStorage(world.Storage{ID: "fast", Type: "dir", Content: []string{"images"}, Capacity: 100 << 30})
	w.AddRole("Recast", strings.Fields("VM.Allocate VM.Audit VM.PowerMgmt VM.Config.Disk VM.Config.CDROM VM.Config.CPU VM.Config.Memory VM.Config.Network "+
		"VM.Config.HWType VM.Config.Options Datastore.AllocateSpace Datastore.Audit Datastore.AllocateTemplate SDN.Use Sys.Audit Sys.Console")...)
	w.AddPool("lab")
	w.AddToken(world.Token{ID: "recast@pve!roll", Secret: apitest.Secret, Privsep: true})
	for _, who := range []string{"recast@pve", "recast@pve!roll"} {
		w.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	err := w.DefineVM("pve1", 9011, map[string]string{
		"name": "wk1", "smbios1": "uuid=00000000-0000-0000-0000-000000009011", "memory": "2048", "agent": "1", "scsihw": "virtio-scsi-single",
		"net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0", "scsi0": "fast:10", "scsi1": "fast:2,serial=data-wk1,discard=on", "ide2": "none,media=cdrom", "boot": "order=scsi0;ide2",
	}, map[string]*world.Media{"scsi1": world.NewMedia([]byte("precious"))})
	must(t, err)
	s, rec := newSite(t), record.New()
	apidoctest.Check(t, rec)
	server := pveapi.New(w, rec, "pve1")
	l, err := s.Net.Listen("pve1:8006")
	must(t, err)
	server.Serve(l, s.Cert)
	t.Cleanup(func() { _ = server.Close() })
	return lab{world: w, Client: s.client(t, "pve1"), recorder: rec}
}

// read reads a VM that must be there.
func (l lab) read(t *testing.T, id cluster.VMID) cluster.VM {
	t.Helper()
	vm, err := l.VM(t.Context(), id)
	must(t, err)
	return vm
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestVolumesOfEachHost: on a local storage, the same volid names a different volume
// on each host, or none.
func TestVolumesOfEachHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		l.world.AddStorage(world.Storage{ID: "pool", Type: "dir", Shared: true, Content: []string{"images"}})
		must(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1", "scsi1": "pool:1"}, nil))
		for _, c := range []struct {
			host, volid string
			want        bool
		}{
			{"pve1", "fast:9011/vm-9011-disk-0.raw", true},
			{"pve2", "fast:9011/vm-9011-disk-0.raw", false},
			{"pve1", "fast:9021/vm-9021-disk-0.raw", false},
			{"pve2", "fast:9021/vm-9021-disk-0.raw", true},
			{"pve1", "pool:9021/vm-9021-disk-0.raw", true},
			{"pve2", "pool:9021/vm-9021-disk-0.raw", true},
		} {
			storage, _, _ := strings.Cut(c.volid, ":")
			var owner cluster.VMID = 9021
			if strings.Contains(c.volid, "9011") {
				owner = 9011
			}
			has, err := l.HasVolume(ctx, c.host, c.volid)
			must(t, err)
			owned, err := l.OwnedVolumes(ctx, c.host, storage, owner)
			must(t, err)
			if has != c.want || slices.Contains(owned, c.volid) != c.want {
				t.Errorf("%s on %s: has %t, owned %q; want %t", c.volid, c.host, has, owned, c.want)
			}
		}
	})
}
