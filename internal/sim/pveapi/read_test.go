package pveapi_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// Checksums of the file with that one HA resource, and of no firewall file.
const (
	haDigest   = "a8aa4cbd08aaaef82dc79c5be359e3a2987b7da5"
	noFirewall = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
)

func TestReads(t *testing.T) {
	t.Parallel()
	volume := func(n, size, used float64) map[string]any {
		return map[string]any{
			"volid": fmt.Sprintf("fast:9011/vm-9011-disk-%v.raw", n), "content": "images", "format": "raw", "size": size, "used": used,
			"parent": nil, "ctime": 946684800.0, "vmid": 9011.0,
		}
	}
	type row struct {
		path string
		want any
	}
	tests := map[string]row{
		"cluster status": {"/cluster/status", []any{
			map[string]any{"type": "cluster", "id": "cluster", "name": "lab", "nodes": 2.0, "version": 2.0, "quorate": 1.0},
			map[string]any{"type": "node", "id": "node/pve1", "name": "pve1", "nodeid": 1.0, "online": 1.0, "level": "", "local": 1.0, "ip": "192.0.2.1"},
			map[string]any{"type": "node", "id": "node/pve2", "name": "pve2", "nodeid": 2.0, "online": 1.0, "level": "", "local": 0.0, "ip": "192.0.2.2"},
		}},
		"VMs": {"/cluster/resources?type=vm", []any{map[string]any{
			"id": "qemu/9011", "type": "qemu", "node": "pve1", "vmid": 9011.0, "name": "wk1", "status": "stopped", "template": 0.0, "hastate": "started",
			"maxcpu": 2.0, "maxmem": 2147483648.0, "maxdisk": 0.0, "cpu": 0.0, "mem": 0.0, "disk": 0.0,
			"netin": 0.0, "netout": 0.0, "diskread": 0.0, "diskwrite": 0.0, "uptime": 0.0,
		}}},
		"pools": {"/pools", []any{map[string]any{"poolid": "talos"}}},
		"pool":  {"/pools?poolid=talos", []any{map[string]any{"poolid": "talos", "members": []any{}}}},
		"one storage": {"/nodes/pve2/storage?storage=isos", []any{map[string]any{
			"storage": "isos", "type": "cephfs", "content": "iso", "shared": 1.0, "active": 1.0, "enabled": 1.0,
			"total": 1099511627776.0, "used": 3.0, "avail": 1099511627773.0, "used_fraction": 3.0 / 1099511627776,
		}}},
		"disks": {"/nodes/pve1/storage/fast/content?content=images", []any{
			volume(0, 528<<10, 528<<10), volume(1, 10<<30, 4096), volume(2, 5<<30, 4096),
		}},
		"disks elsewhere":  {"/nodes/pve2/storage/fast/content", []any{}},
		"disks of another": {"/nodes/pve1/storage/fast/content?vmid=500", []any{}},
		"ISO":              {"/nodes/pve1/storage/isos/content/isos:iso%2Fboot.iso", map[string]any{"path": "/mnt/pve/isos/template/iso/boot.iso", "size": 3.0, "used": 3.0, "format": "raw"}},
		"HA":               {"/cluster/ha/resources", []any{map[string]any{"sid": "vm:9011", "type": "vm", "state": "started", "group": "g", "digest": haDigest}}},
		"HA of the VM":     {"/cluster/ha/resources/vm:9011", map[string]any{"sid": "vm:9011", "type": "vm", "state": "started", "group": "g", "digest": haDigest}},
		"next VMID":        {"/cluster/nextid", "100"},
		"that VMID":        {"/cluster/nextid?vmid=9012", "9012"},
		"replication":      {"/cluster/replication", []any{}},
		"backup jobs":      {"/cluster/backup", []any{}},
		"firewall rules":   {vm + "/firewall/rules", []any{}},
		"firewall options": {vm + "/firewall/options", map[string]any{"digest": noFirewall}},
		"tasks":            {"/nodes/pve1/tasks", []any{}},
		"lost log":         {"/nodes/pve1/tasks/UPID:pve1:00000001:00000001:00000001:qmstart:1:x@pve:/log", []any{map[string]any{"n": 1.0, "t": "unable to open file - No such file or directory"}}},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.AddPool("talos")
		l.world.AddHA(world.HAResource{SID: "vm:9011", State: "started", Group: "g"})
		if diff := cmp.Diff(reply{Status: "200 OK", Data: test.want}, l.do("GET", test.path)); diff != "" {
			t.Error(diff)
		}
	})
}
