package pve

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
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
		"VM.Config.HWType VM.Config.Options Datastore.AllocateSpace Datastore.Audit Datastore.AllocateTemplate SDN.Use Sys.Audit")...)
	w.AddToken(world.Token{ID: "recast@pve!roll", Secret: apitest.Secret, Privsep: true})
	for _, who := range []string{"recast@pve", "recast@pve!roll"} {
		w.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	err := w.DefineVM("pve1", 9011, map[string]string{
		"name": "wk1", "smbios1": "uuid=00000000-0000-0000-0000-000000009011", "memory": "2048", "agent": "1", "scsihw": "virtio-scsi-single",
		"net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0", "scsi0": "fast:10", "scsi1": "fast:2,serial=data-wk1,discard=on", "ide2": "none,media=cdrom", "boot": "order=scsi0;ide2",
	}, map[string]*world.Media{"scsi1": world.NewMedia([]byte("precious"))})
	if err != nil {
		t.Fatal(err)
	}
	s, rec := newSite(t), record.New()
	apidoctest.Check(t, rec)
	server := pveapi.New(w, rec, "pve1")
	l, err := s.Net.Listen("pve1:8006")
	if err != nil {
		t.Fatal(err)
	}
	server.Serve(l, s.Cert)
	t.Cleanup(func() { _ = server.Close() })
	return lab{world: w, Client: s.client(t, "pve1"), recorder: rec}
}

// read reads a VM that must be there.
func (l lab) read(t *testing.T, id cluster.VMID) cluster.VM {
	t.Helper()
	vm, err := l.VM(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecreate is the heart of a roll as this package sees it: park, delete, create, attach, start.
func TestRecreate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		must(t, l.Start(ctx, l.read(t, 9011)))
		if vm := l.read(t, 9011); !vm.Running || vm.QMP != "running" || vm.Host != "pve1" || vm.UUID() != "00000000-0000-0000-0000-000000009011" {
			t.Fatalf("started: %+v", vm)
		}
		must(t, l.Shutdown(ctx, l.read(t, 9011), time.Minute))
		was := l.read(t, 9011)
		if was.Running || was.Digest == "" {
			t.Fatalf("shut down: %+v", was)
		}
		must(t, l.CreateVM(ctx, "pve1", 9090, map[string]string{"name": "park-wk1", "memory": "16", "protection": "1"}))
		for _, key := range []string{"scsi0", "scsi1"} {
			must(t, l.MoveDisk(ctx, l.read(t, 9011), key, 9090, key))
		}
		must(t, l.DeleteVM(ctx, l.read(t, 9011)))
		if _, err := l.VM(ctx, 9011); !errors.Is(err, cluster.ErrNotFound) {
			t.Fatalf("deleted: %v", err)
		}
		must(t, l.CreateVM(ctx, "pve1", 9011, map[string]string{
			"name": "wk1", "smbios1": was.Config["smbios1"], "net0": was.Config["net0"], "memory": was.Config["memory"], "scsi0": "fast:10,serial=new", "onboot": "0",
		}))
		must(t, l.MoveDisk(ctx, l.read(t, 9090), "scsi1", 9011, "scsi1"))
		must(t, l.SetConfig(ctx, l.read(t, 9011), map[string]string{"onboot": "1", "boot": "order=scsi0"}, []string{"name"}))
		now := l.read(t, 9011)
		if !strings.Contains(now.Config["scsi1"], "serial=data-wk1") || now.Config["net0"] != was.Config["net0"] || now.Config["onboot"] != "1" || now.Config["name"] != "" {
			t.Errorf("recreated: %v", now.Config)
		}
		volid, _, _ := strings.Cut(now.Config["scsi1"], ",")
		if m := l.world.Media(volid, "pve1"); m == nil || !bytes.Equal(m.Bytes(), []byte("precious")) {
			t.Errorf("the content of %s changed", volid)
		}
		if has, err := l.HasVolume(ctx, "pve1", volid); err != nil || !has {
			t.Errorf("%s is listed: %v, error %v", volid, has, err)
		}
		must(t, l.Start(ctx, now))
		must(t, l.Stop(ctx, now))
		vms, err := l.VMs(ctx)
		must(t, err)
		var ids []cluster.VMID
		for _, vm := range vms {
			ids = append(ids, vm.ID)
		}
		if diff := cmp.Diff([]cluster.VMID{9011, 9090}, ids); diff != "" {
			t.Errorf("VMs (-want +got):\n%s", diff)
		}
		for _, c := range l.recorder.Calls() {
			if c.Method == "DELETE" && (len(c.Params) > 0 || strings.Contains(c.Path, "?")) {
				t.Errorf("deleted with parameters: %s %v", c.Path, c.Params)
			}
		}
	})
}

// refusal is something that Proxmox refuses.
type refusal struct {
	do   func(*testing.T, lab) error
	is   error
	want string // part of the error
}

func testRefusals(t *testing.T, cases map[string]refusal) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				err := tc.do(t, newLab(t))
				if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
					t.Errorf("error is %v, want %q in it", err, tc.want)
				}
			})
		})
	}
}

func TestRefusedChanges(t *testing.T) {
	t.Parallel()
	testRefusals(t, map[string]refusal{
		"VMID is taken": {
			func(t *testing.T, l lab) error { return l.CreateVM(t.Context(), "pve2", 9011, nil) },
			cluster.ErrExists, "VM 9011 already exists on node 'pve1'",
		},
		"configuration changed, PUT": {
			func(t *testing.T, l lab) error {
				vm := l.read(t, 9011)
				must(t, l.SetConfig(t.Context(), vm, map[string]string{"onboot": "1"}, nil))
				return l.SetConfig(t.Context(), vm, map[string]string{"onboot": "0"}, nil)
			},
			cluster.ErrChanged, "checksum mismatch",
		},
		"configuration changed, POST": {
			func(t *testing.T, l lab) error {
				vm := l.read(t, 9011)
				must(t, l.SetConfig(t.Context(), vm, map[string]string{"onboot": "1"}, nil))
				return l.SetConfig(t.Context(), vm, map[string]string{"ide2": "none,media=cdrom"}, nil)
			},
			cluster.ErrChanged, "checksum mismatch",
		},
		"configuration changed, move_disk": {
			func(t *testing.T, l lab) error {
				must(t, l.CreateVM(t.Context(), "pve1", 9090, nil))
				vm := l.read(t, 9011)
				vm.Digest = strings.Repeat("0", 40)
				return l.MoveDisk(t.Context(), vm, "scsi1", 9090, "scsi1")
			},
			cluster.ErrChanged, "file changed by other user",
		},
		"storage is full": {
			func(t *testing.T, l lab) error {
				l.world.FillStorage("fast")
				return l.CreateVM(t.Context(), "pve1", 9090, map[string]string{"scsi0": "fast:10"})
			},
			api.ErrNoSpace, "",
		},
		"VM runs": {
			func(t *testing.T, l lab) error {
				must(t, l.Start(t.Context(), l.read(t, 9011)))
				return l.DeleteVM(t.Context(), l.read(t, 9011))
			},
			nil, "VM 9011 is running - destroy failed",
		},
	})
}

func TestRefusedPower(t *testing.T) {
	t.Parallel()
	testRefusals(t, map[string]refusal{
		"volume is missing at start": {
			func(t *testing.T, l lab) error {
				vm := l.read(t, 9011)
				l.world.FailNext("qmstart", "volume 'isos:iso/x.iso' does not exist")
				return l.Start(t.Context(), vm)
			},
			nil, "task qmstart 9011 on pve1: volume 'isos:iso/x.iso' does not exist",
		},
		"guest is paused": {
			func(t *testing.T, l lab) error {
				must(t, l.Start(t.Context(), l.read(t, 9011)))
				l.world.SetQMP(9011, "io-error")
				return l.Start(t.Context(), l.read(t, 9011))
			},
			nil, "VM 9011 running: running, io-error",
		},
		"guest ignores its power button": {
			func(t *testing.T, l lab) error {
				l.world.SetFirmware(nil)
				must(t, l.Start(t.Context(), l.read(t, 9011)))
				return l.Shutdown(t.Context(), l.read(t, 9011), 10*time.Second)
			},
			nil, "got timeout",
		},
	})
}

func TestLabAccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		granted, err := l.Permissions(t.Context(), "/vms/9999")
		must(t, err)
		if !granted["VM.Allocate"] || l.TokenID() != "recast@pve!roll" {
			t.Errorf("permissions of %s: %v", l.TokenID(), granted)
		}
		if quorate, err := l.Quorate(t.Context()); err != nil || !quorate {
			t.Errorf("quorate %v, error %v", quorate, err)
		}
		l.world.SetQuorum(false)
		if quorate, err := l.Quorate(t.Context()); err != nil || quorate {
			t.Errorf("without quorum: %v, error %v", quorate, err)
		}
		l.world.Grant(world.ACL{Path: "/vms/9011", Who: "recast@pve!roll", Role: "NoAccess", Propagate: true})
		_, err = l.VM(t.Context(), 9011)
		if err == nil || errors.Is(err, cluster.ErrNotFound) || len(fault.Hints(err)) != 1 {
			t.Errorf("a VM that may not be seen: %v, hints %q", err, fault.Hints(err))
		}
		err = l.DeleteVM(t.Context(), cluster.VM{ID: 9011, Host: "pve1"})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(strings.Join(fault.Hints(err), ""), "needs VM.Allocate on /vms/9011") {
			t.Errorf("a VM that may not be deleted: %v, hints %q", err, fault.Hints(err))
		}
	})
}

func TestLabUpload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, ctx := newLab(t), t.Context()
		info, err := l.Storage(ctx, "pve2", "isos")
		must(t, err)
		want := images.StorageInfo{Active: true, Shared: true, Content: []string{"iso"}, FreeBytes: 1 << 30}
		if diff := cmp.Diff(want, info); diff != "" {
			t.Errorf("storage (-want +got):\n%s", diff)
		}
		content := bytes.Repeat([]byte("talos"), 100_000)
		u := images.Upload{
			Host: "pve1", Storage: "isos", Name: "a.iso", SizeBytes: int64(len(content)),
			SHA256: strings.Repeat("0", 64),
			Open:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		}
		if err := l.Upload(ctx, u); err == nil || !strings.Contains(err.Error(), "task imgcopy") {
			t.Errorf("with a wrong checksum: %v", err)
		}
		if _, found, err := l.ISO(ctx, "pve1", "isos", "a.iso"); found || err != nil {
			t.Errorf("is there: %v, error %v", found, err)
		}
		u.SHA256 = world.NewMedia(content).SHA256()
		must(t, l.Upload(ctx, u))
		size, found, err := l.ISO(ctx, "pve2", "isos", "a.iso")
		if size != u.SizeBytes || !found || err != nil {
			t.Errorf("size %d, there: %v, error %v", size, found, err)
		}
		if has, err := l.HasVolume(ctx, "pve2", "isos:iso/a.iso"); !has || err != nil {
			t.Errorf("has it: %v, error %v", has, err)
		}
		if err := l.Upload(ctx, images.Upload{Host: "pve1", Storage: "nosuch", Name: "a.iso", SHA256: u.SHA256, SizeBytes: u.SizeBytes, Open: u.Open}); !errors.Is(err, images.ErrNoStorage) {
			t.Errorf("to an unknown storage: %v", err)
		}
	})
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
