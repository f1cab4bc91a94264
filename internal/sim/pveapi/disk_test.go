package pveapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestParking is recast's central transaction, as observed on Proxmox VE 9.2: every disk
// moves to a parking VM, the VM is deleted and recreated, the disks move back.
func TestParking(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		before := l.config(9011)
		left := []world.Renewed{{Name: "boot"}}
		left = append(left, world.RenewedByProxmox()...)
		dump := l.world.Dump(nil, left...)
		check := func(what, got string) {
			t.Helper()
			if got != "OK" {
				t.Fatalf("%s: %s", what, got)
			}
			if broken := l.world.Violations(); broken != nil {
				t.Fatalf("%s: %v", what, broken)
			}
		}
		check("create parking", l.task("POST", "/nodes/pve1/qemu", "vmid=9090", "memory=16", "protection=1", "smbios1=uuid=x"))
		want := map[string]any{"memory": "16", "protection": 1.0, "smbios1": "uuid=x", "boot": " "}
		if diff := cmp.Diff(want, l.config(9090)); diff != "" {
			t.Error(diff)
		}
		for _, key := range []string{"scsi0", "scsi1", "efidisk0"} {
			check("park "+key, l.task("POST", vm+"/move_disk", "disk="+key, "target-vmid=9090"))
		}
		parked := l.config(9090)
		if got, want := parked["scsi1"], "fast:9090/vm-9090-disk-1.raw,discard=on,iothread=1,serial=data-wk1,size=5G,ssd=1"; got != want {
			t.Errorf("parked %v, want %v", got, want)
		}
		if got := l.config(9011)["boot"]; got != "order=ide2" {
			t.Errorf("boot of the source: %v", got)
		}
		check("delete", l.task("DELETE", vm))
		create := []string{"vmid=9011", "scsi0=fast:10,serial=sys"}
		for _, key := range []string{"name", "memory", "smbios1", "net0", "scsihw", "agent", "boot", "ide2"} {
			create = append(create, key+"="+before[key].(string))
		}
		check("create", l.task("POST", "/nodes/pve1/qemu", append(create, "cores=2", "onboot=1")...))
		for _, key := range []string{"scsi1", "efidisk0"} {
			check("attach "+key, l.task("POST", "/nodes/pve1/qemu/9090/move_disk", "disk="+key, "target-vmid=9011"))
		}
		if diff := cmp.Diff(numberless(before), numberless(l.config(9011))); diff != "" {
			t.Error(diff)
		}
		check("unprotect", l.putOK("/nodes/pve1/qemu/9090/config", "protection=0"))
		check("delete parking", l.task("DELETE", "/nodes/pve1/qemu/9090"))
		if diff := cmp.Diff(dump, l.world.Dump(nil, left...)); diff != "" {
			t.Error(diff)
		}
	})
}

func (l *lab) putOK(path string, form ...string) string {
	l.t.Helper()
	if r := l.do("PUT", path, form...); r.Status != "200 OK" {
		l.t.Fatalf("PUT %s %v: %+v", path, form, r)
	}
	return "OK"
}

// numberless removes the numbers from volids.
func numberless(config map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range config {
		if s, ok := value.(string); ok {
			for _, n := range []string{"0", "1", "2"} {
				s = strings.ReplaceAll(s, "-disk-"+n, "-disk-*")
			}
			value = s
		}
		out[key] = value
	}
	return out
}

func TestDestroyTakesOwnedVolumes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		before []string // sent with PUT first
		query  []string
		want   []string // remaining volumes
		broken int
	}{
		"detached disk dies too": {before: []string{"delete=scsi1"}, want: nil, broken: 3},
		"foreign disk survives":  {before: []string{"scsi4=fast:500/vm-500-disk-0.raw"}, want: []string{"fast:500/vm-500-disk-0.raw"}, broken: 3},
		"with unreferenced":      {query: []string{"destroy-unreferenced-disks=1"}, want: []string{"fast:500/vm-500-disk-0.raw"}, broken: 4},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				must(t, l.world.DefineVM("pve1", 500, map[string]string{"scsi0": "fast:1"}, nil))
				if test.before != nil {
					l.putOK(vm+"/config", test.before...)
				}
				if got := l.task("DELETE", vm, test.query...); got != "OK" {
					t.Fatal(got)
				}
				if test.want == nil {
					test.want = []string{"fast:500/vm-500-disk-0.raw"}
				}
				if diff := cmp.Diff(test.want, l.volumes("fast")); diff != "" {
					t.Error(diff)
				}
				if got := l.world.Violations(); len(got) != test.broken {
					t.Errorf("violations: %v", got)
				}
			})
		})
	}
}

func (l *lab) volumes(storage string) []string {
	l.t.Helper()
	list, err := l.world.Volumes(storage, "pve1")
	must(l.t, err)
	var names []string
	for _, v := range list {
		names = append(names, v.Volid)
	}
	return names
}

func TestCreateFailsCleanly(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.Preallocate("fast")
		before := l.world.Dump(nil, world.Renewed{Name: "tasks"})
		tests := map[string]struct{ want, disk string }{
			"no room":   {"unable to create VM 9012 - unable to create image: qemu-img: fast:9012/vm-9012-disk-1.raw: Could not preallocate data for the new file: No space left on device", "scsi1=fast:900"},
			"no volume": {"unable to create VM 9012 - volume 'fast:7/vm-7-disk-0.raw' does not exist", "scsi1=fast:7/vm-7-disk-0.raw"},
		}
		for name, test := range tests {
			if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1", test.disk); got != test.want {
				t.Errorf("%s: %s", name, got)
			}
		}
		l.world.FailNext("qmcreate", "no luck")
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:1"); got != "unable to create VM 9012 - no luck" {
			t.Error(got)
		}
		if diff := cmp.Diff(before, l.world.Dump(nil, world.Renewed{Name: "tasks"})); diff != "" {
			t.Error(diff)
		}
	})
}

// TestDestroyTakesPendingVolumes: even those that a failed change has left pending.
func TestDestroyTakesPendingVolumes(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.FillStorage("thin")
		if got := l.do("PUT", vm+"/config", "scsi2=fast:1", "scsi3=thin:1").Status; !strings.HasPrefix(got, "500 unable to create image") {
			t.Fatal(got)
		}
		if got := l.do("GET", vm+"/config?current=1").Data.(map[string]any)["scsi2"]; got != nil {
			t.Fatalf("not pending: %v", got)
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Fatal(got)
		}
		if got := l.volumes("fast"); got != nil {
			t.Errorf("left: %v", got)
		}
	})
}

// TestNumbersOnNetworkFileSystems: each format is numbered separately.
func TestNumbersOnNetworkFileSystems(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "nas", Type: "nfs", Shared: true, Content: []string{"images"}})
		l.putOK(vm+"/config", "scsi5=nas:1", "scsi6=nas:1,format=qcow2", "scsi7=fast:1,format=qcow2")
		want := []string{"nas:9011/vm-9011-disk-0.qcow2", "nas:9011/vm-9011-disk-0.raw"}
		if diff := cmp.Diff(want, l.volumes("nas")); diff != "" {
			t.Error(diff)
		}
		if got := l.config(9011)["scsi7"]; got != "fast:9011/vm-9011-disk-3.qcow2,size=1G" {
			t.Error(got)
		}
	})
}

// TestDeleteOfABaseVolume: base volumes of linked clones can't be deleted.
func TestDeleteOfABaseVolume(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("All", append(talosRole(), "VM.Clone", "Datastore.Allocate")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "All", Propagate: true})
		must(t, l.world.DefineVM("pve1", 400, map[string]string{"scsi0": "fast:1", "net0": "virtio=BC:24:11:00:04:00,bridge=vmbr0"}, nil))
		for _, step := range [][]string{{"/template"}, {"/clone", "newid=401"}, {"/clone", "newid=402", "full=1", "name=copy"}} {
			if got := l.task("POST", "/nodes/pve1/qemu/400"+step[0], step[1:]...); got != "OK" {
				t.Fatalf("%v: %s", step, got)
			}
		}
		linked, full := l.config(401), l.config(402)
		got := []any{linked["scsi0"], linked["name"], full["scsi0"], full["name"], full["template"], linked["net0"] == full["net0"]}
		want := []any{
			"fast:400/base-400-disk-0.raw/401/vm-401-disk-0.qcow2,size=1G", "Copy-of-VM-400", "fast:402/vm-402-disk-0.raw,size=1G", "copy", nil, false,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		end := l.task("DELETE", "/nodes/pve1/storage/fast/content/fast:400%2Fbase-400-disk-0.raw")
		if want := "base volume '400/base-400-disk-0.raw' is still in use by linked clones"; end != want {
			t.Errorf("%s, want %s", end, want)
		}
	})
}
