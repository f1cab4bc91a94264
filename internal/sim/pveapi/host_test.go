package pveapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func TestHostDown(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		must(t, l.world.DefineVM("pve2", 9021, map[string]string{"onboot": "1"}, nil))
		must(t, l.world.DefineVM("pve2", 9022, nil, nil))
		must(t, l.world.PowerOn(9021))
		must(t, l.world.PowerOn(9022))
		upid := l.do("POST", "/nodes/pve2/qemu/9022/status/shutdown").Data.(string)
		time.Sleep(2 * time.Second)
		l.world.CrashHost("pve2")
		began := time.Now()
		for _, path := range []string{"/nodes/pve2/status", "/nodes/pve2/qemu/9021/config", "/nodes/pve2/tasks/" + upid + "/status"} {
			if diff := cmp.Diff(reply{Status: "595 No route to host"}, l.do("GET", path)); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("took %v", took)
		}
		state := func() map[any]any {
			out := map[any]any{}
			for _, row := range l.do("GET", "/cluster/resources").Data.([]any) {
				r := row.(map[string]any)
				out[r["id"]] = r["status"]
			}
			return out
		}
		want := map[any]any{
			"qemu/9011": "stopped", "qemu/9021": "unknown", "qemu/9022": "unknown", "node/pve1": "online", "node/pve2": "offline",
			"storage/pve1/fast": "available", "storage/pve1/isos": "available", "storage/pve1/thin": "available",
			"storage/pve2/fast": "unknown", "storage/pve2/isos": "unknown", "storage/pve2/thin": "unknown",
		}
		if diff := cmp.Diff(want, state()); diff != "" {
			t.Error(diff)
		}
		if online := l.do("GET", "/cluster/status").Data.([]any)[2].(map[string]any)["online"]; online != 0.0 {
			t.Errorf("online: %v", online)
		}
		l.world.BootHost("pve2")
		time.Sleep(time.Minute)
		if task := l.do("GET", "/nodes/pve2/tasks/"+upid+"/status").Data.(map[string]any); task["exitstatus"] != "unexpected status" {
			t.Errorf("%v", task)
		}
		now := state()
		if diff := cmp.Diff([]any{"running", "stopped", "online"}, []any{now["qemu/9021"], now["qemu/9022"], now["node/pve2"]}); diff != "" {
			t.Error(diff)
		}
	})
}

// TestCreateEndsWithItsHost: a crash leaves no cleanup to do after the worker.
func TestCreateEndsWithItsHost(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		upid := l.do("POST", "/nodes/pve2/qemu", "vmid=9021", "scsi0=fast:1").Data.(string)
		synctest.Wait()
		l.world.RebootHost("pve2", time.Minute)
		if task, _ := l.world.WaitTask(upid); task.ExitStatus != "unexpected status" {
			t.Errorf("%+v", task)
		}
		if diff := cmp.Diff(map[string]any{"lock": "create"}, l.config(9021)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestHostOfTheAPIIsDown(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.CrashHost("pve1")
		if res, err := l.client.Get(base + "/version"); err == nil {
			_ = res.Body.Close()
			t.Errorf("an answer: %s", res.Status)
		}
		l.world.BootHost("pve1")
		if got := l.do("GET", "/version").Status; got != "200 OK" {
			t.Error(got)
		}
	})
}

// TestLocalStorages: each host has its own volumes under the same volids.
func TestLocalStorages(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "rbd", Type: "rbd", Shared: true, Content: []string{"images"}})
		l.world.AddStorage(world.Storage{ID: "only2", Type: "zfspool", Content: []string{"images"}, Hosts: []string{"pve2"}})
		must(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1", "scsi1": "rbd:1", "scsi2": "only2:1"}, nil))
		count := func(host, storage string) any {
			r := l.do("GET", "/nodes/"+host+"/storage/"+storage+"/content", "vmid=9021")
			list, ok := r.Data.([]any)
			if !ok {
				return r.Status
			}
			return len(list)
		}
		want := []any{0, 1, 1, 1, "500 storage 'only2' is not available on node 'pve1'", 1}
		got := []any{count("pve1", "fast"), count("pve2", "fast"), count("pve1", "rbd"), count("pve2", "rbd"), count("pve1", "only2"), count("pve2", "only2")}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestStoragesForOtherHosts: they are listed, unless the list is filtered by content.
func TestStoragesForOtherHosts(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "only2", Type: "zfspool", Content: []string{"images"}, Hosts: []string{"pve2"}})
		want := []any{map[string]any{
			"storage": "only2", "type": "zfspool", "content": "images", "shared": 0.0, "active": 0.0, "enabled": 0.0,
			"total": 0.0, "used": 0.0, "avail": 0.0,
		}}
		if diff := cmp.Diff(want, l.do("GET", "/nodes/pve1/storage", "storage=only2").Data); diff != "" {
			t.Error(diff)
		}
		if got, want := l.do("GET", "/nodes/pve1/storage", "storage=only2", "content=images").Status, "400 Parameter verification failed."; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
