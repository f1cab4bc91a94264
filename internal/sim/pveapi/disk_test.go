package pveapi_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// TestParking is the transaction that recast is about, as it was observed on
// Proxmox VE 9.2: every disk to a parking VM, the VM deleted, made again, the disks back.
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

// numberless leaves the numbers out of volids.
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
		before []string // PUT first
		query  []string
		want   []string // volumes left
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

// TestWithoutQuorum: Proxmox destroys first and fails afterwards.
func TestWithoutQuorum(t *testing.T) {
	t.Parallel()
	const denied = "unable to open file '/etc/pve/nodes/pve1/qemu-server/9011.conf.tmp."
	inLab(t, func(t *testing.T, l *lab) {
		l.world.SetQuorum(false)
		if got := l.do("PUT", vm+"/config", "memory=1024").Status; !strings.HasPrefix(got, "500 "+denied) {
			t.Errorf("PUT: %s", got)
		}
		if got := l.do("PUT", vm+"/config", "scsi3=fast:1").Status; !strings.HasPrefix(got, "500 "+denied) {
			t.Errorf("PUT: %s", got)
		}
		if got := l.volumes("fast"); len(got) != 4 {
			t.Errorf("no orphan: %v", got)
		}
		if got := l.task("DELETE", vm, "destroy-unreferenced-disks=1"); !strings.HasPrefix(got, denied) {
			t.Errorf("DELETE: %s", got)
		}
		if got := l.volumes("fast"); got != nil {
			t.Errorf("volumes left: %v", got)
		}
		if got := l.config(9011)["scsi1"]; got == nil {
			t.Error("the configuration is gone too")
		}
	})
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		l.world.SetQuorum(false)
		if got := l.task("POST", vm+"/move_disk", "disk=scsi1", "target-vmid=9090"); !strings.HasPrefix(got, denied) {
			t.Errorf("move: %s", got)
		}
		want := []world.DiskState{{Serial: "data-wk1", SHA256: l.data.SHA256(), Volid: "fast:9090/vm-9090-disk-0.raw"}}
		if diff := cmp.Diff(want, l.world.Persistent()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"disk data-wk1: no VM's configuration names its volume"}, l.world.Violations()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDetachAndReattach(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.putOK(vm+"/config", "delete=scsi1")
		c := l.config(9011)
		if diff := cmp.Diff([]any{nil, "fast:9011/vm-9011-disk-2.raw"}, []any{c["scsi1"], c["unused0"]}); diff != "" {
			t.Fatal(diff)
		}
		l.putOK(vm+"/config", "scsi3=fast:9011/vm-9011-disk-2.raw,serial=again")
		c = l.config(9011)
		if diff := cmp.Diff([]any{"fast:9011/vm-9011-disk-2.raw,serial=again,size=5G", nil}, []any{c["scsi3"], c["unused0"]}); diff != "" {
			t.Error(diff)
		}
		l.putOK(vm+"/config", "delete=scsi0", "force=1")
		if diff := cmp.Diff([]string{"fast:9011/vm-9011-disk-0.raw", "fast:9011/vm-9011-disk-2.raw"}, l.volumes("fast")); diff != "" {
			t.Error(diff)
		}
		if got := l.config(9011)["boot"]; got != "order=ide2" {
			t.Errorf("boot: %v", got)
		}
		l.putOK(vm+"/config", "protection=1")
		if got := l.do("PUT", vm+"/config", "delete=scsi3").Status; got != "500 can't remove drive 'scsi3' - protection mode enabled" {
			t.Error(got)
		}
		if broken := l.world.Violations(); broken != nil {
			t.Error(broken)
		}
	})
}

func TestPendingOfRunningVM(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.PowerOn(9011))
		l.putOK(vm+"/config", "memory=4096", "ide2=none,media=cdrom", "scsi2=fast:1,serial=new")
		if got := l.do("PUT", vm+"/config", "delete=scsi0").Status; got != "400 Parameter verification failed." {
			t.Fatal(got)
		}
		state := func() []any {
			l.t.Helper()
			cur := l.do("GET", vm+"/config?current=1").Data.(map[string]any)
			merged := l.config(9011)
			return []any{cur["memory"], cur["ide2"], cur["scsi2"], merged["memory"], merged["scsi0"], merged["unused0"]}
		}
		scsi2 := "fast:9011/vm-9011-disk-3.raw,serial=new,size=1G"
		if diff := cmp.Diff([]any{"2048", "none,media=cdrom", scsi2, "4096", nil, nil}, state()); diff != "" {
			t.Error(diff)
		}
		var pending []any
		for _, e := range l.do("GET", vm+"/pending").Data.([]any) {
			entry := e.(map[string]any)
			if entry["pending"] != nil || entry["delete"] != nil {
				pending = append(pending, []any{entry["key"], entry["pending"], entry["delete"]})
			}
		}
		if diff := cmp.Diff([]any{[]any{"memory", "4096", nil}, []any{"scsi0", nil, 1.0}}, pending); diff != "" {
			t.Error(diff)
		}
		if got := l.task("POST", vm+"/status/stop"); got != "OK" {
			t.Fatal(got)
		}
		if diff := cmp.Diff([]any{"4096", "none,media=cdrom", scsi2, "4096", nil, "fast:9011/vm-9011-disk-1.raw"}, state()); diff != "" {
			t.Error("after the stop: ", diff)
		}
	})
}

func TestCreateFailsCleanly(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
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

func TestAttachingForeignVolumeNeedsRights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		must(t, l.world.DefineVM("pve1", 210, map[string]string{"scsi0": "fast:1"}, nil))
		l.world.AddRole("Own", talosRole()...)
		l.world.AddRole("Look", "Datastore.Audit", "Datastore.AllocateSpace")
		l.world.Grant(world.ACL{Path: "/vms/9011", Who: tokenID, Role: "Own", Propagate: true})
		l.world.Grant(world.ACL{Path: "/storage", Who: tokenID, Role: "Look", Propagate: true})
		put := func() string { return l.do("PUT", vm+"/config", "scsi5=fast:210/vm-210-disk-0.raw").Status }
		if got := put(); got != "403 Permission check failed (/vms/210, VM.Config.Disk)" {
			t.Error(got)
		}
		l.world.Grant(world.ACL{Path: "/vms/210", Who: tokenID, Role: "Own"})
		if got := put(); got != "200 OK" {
			t.Error(got)
		}
		if got := l.task("DELETE", vm); got != "OK" {
			t.Error(got)
		}
		if got := l.do("GET", vm+"/config").Status; got != "403 Permission check failed (/vms/9011, VM.Audit)" {
			t.Errorf("the VM's ACL went with it, so: %s", got)
		}
	})
}

func TestConfigLock(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.PowerOn(9011)) // an idle guest ignores the power button, for a minute
		upid := l.do("POST", vm+"/status/shutdown").Data.(string)
		synctest.Wait() // until its worker holds the lock
		began := time.Now()
		want := "500 can't lock file '/var/lock/qemu-server/lock-9011.conf' - got timeout"
		if got := l.do("PUT", vm+"/config", "memory=1024").Status; got != want {
			t.Error(got)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
		task, _ := l.world.WaitTask(upid)
		if want := "VM quit/powerdown failed - got timeout"; task.ExitStatus != want {
			t.Errorf("%q, want %q", task.ExitStatus, want)
		}
	})
}
