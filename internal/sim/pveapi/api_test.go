package pveapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func itoa(n int) string { return strconv.Itoa(n) }

func inLab(t *testing.T, run func(*testing.T, *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, newLab(t, talosRole()...)) })
}

const vm = "/nodes/pve1/qemu/9011"

// TestRefusals holds the status lines and per-parameter messages against what Proxmox VE 9.2 says.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const mismatch = "500 checksum mismatch (file change by other user?)"
	bad := "400 Parameter verification failed."
	tests := map[string]struct {
		set    func(*testing.T, *world.World)
		method string
		path   string
		form   []string
		want   string
		errors map[string]string
	}{
		"no such VM":        {method: "GET", path: "/nodes/pve1/qemu/9999/config", want: "500 Configuration file 'nodes/pve1/qemu-server/9999.conf' does not exist"},
		"VM of other host":  {method: "GET", path: "/nodes/pve2/qemu/9011/config", want: "500 Configuration file 'nodes/pve2/qemu-server/9011.conf' does not exist"},
		"no such path":      {method: "GET", path: "/nosuch", want: "501 Method 'GET /nosuch' not implemented"},
		"no such method":    {method: "PUT", path: "/version", want: "501 Method 'PUT /version' not implemented"},
		"no such node":      {method: "GET", path: "/nodes/nope/status", want: "500 hostname lookup 'nope' failed - failed to get address info for: nope: Name or service not known"},
		"unknown parameter": {method: "GET", path: "/cluster/resources", form: []string{"nosuch=1"}, want: bad, errors: map[string]string{"nosuch": unknown}},
		"unknown option":    {method: "PUT", path: vm + "/config", form: []string{"nosuch=1"}, want: bad, errors: map[string]string{"nosuch": unknown}},
		"create unknown":    {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "foo=1"}, want: bad, errors: map[string]string{"foo": unknown}},
		"create, no vmid":   {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"create taken":      {method: "POST", path: "/nodes/pve2/qemu", form: []string{"vmid=9011"}, want: "500 unable to create VM 9011 - VM 9011 already exists on node 'pve1'"},
		"create bad name":   {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "name=a_b"}, want: bad, errors: map[string]string{"name": "invalid format - value does not look like a valid DNS name\n"}},
		"create no pool":    {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "pool=nopool"}, want: "403 Permission check failed (pool 'nopool' does not exist)"},
		"create, vmgenid":   {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "vmgenid=1"}, want: "500 only root can set 'vmgenid' config"},
		"create, startup":   {method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012", "startup=order=1"}, want: "403 Permission check failed (/, Sys.Modify)"},
		"empty PUT":         {method: "PUT", path: vm + "/config", want: "500 no options specified"},
		"wrong digest":      {method: "PUT", path: vm + "/config", form: []string{"memory=1024", "digest=00"}, want: mismatch},
		"wrong digest POST": {method: "POST", path: vm + "/config", form: []string{"memory=1024", "digest=00"}, want: mismatch},
		"delete unknown":    {method: "PUT", path: vm + "/config", form: []string{"delete=nosuch"}, want: bad, errors: map[string]string{"delete": "unknown option 'nosuch'"}},
		"missing volume":    {method: "PUT", path: vm + "/config", form: []string{"scsi5=fast:9011/vm-9011-disk-7.raw"}, want: "500 volume 'fast:9011/vm-9011-disk-7.raw' does not exist"},
		"skiplock":          {method: "PUT", path: vm + "/config", form: []string{"memory=1", "skiplock=1"}, want: bad, errors: map[string]string{"skiplock": "Only root may use this option."}},
		"locked": {
			set:    func(_ *testing.T, w *world.World) { w.SetLock(9011, "backup") },
			method: "PUT", path: vm + "/config", form: []string{"memory=1024"}, want: "500 VM is locked (backup)",
		},
		"delete running": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "DELETE", path: vm, want: "500 VM 9011 is running - destroy failed",
		},
		"delete HA": {
			set:    func(_ *testing.T, w *world.World) { w.AddHA(world.HAResource{SID: "vm:9011", State: "started"}) },
			method: "DELETE", path: vm, want: "500 unable to remove VM 9011 - used in HA resources and purge parameter not set.",
		},
		"create without quorum": {
			set:    func(_ *testing.T, w *world.World) { w.SetQuorum(false) },
			method: "POST", path: "/nodes/pve1/qemu", form: []string{"vmid=9012"}, want: "500 cluster not ready - no quorum?",
		},
		"move to other host": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve2", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Both VMs need to be on the same node (pve1 != pve2)",
		},
		"move without disk": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi7", "target-vmid=9090"}, want: "500 Disk 'scsi7' for VM '9011' does not exist",
		},
		"move a CD": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=ide2", "target-vmid=9090"}, want: "500 CD drive contents can't be moved to another VM",
		},
		"move to taken key": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, map[string]string{"scsi1": "fast:1"}, nil))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Target disk key 'scsi1' is already in use for VM '9090'",
		},
		"move wrong digest": {
			set:    func(t *testing.T, w *world.World) { must(t, w.DefineVM("pve1", 9090, nil, nil)) },
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090", "digest=00"},
			want: "500 VM 9011: detected modified configuration - file changed by other user? Try again.",
		},
		"move while running": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, nil, nil))
				must(t, w.PowerOn(9011))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"},
			want: "500 Cannot move disk to another VM while the source VM is running - detach first",
		},
		"move with snapshot": {
			set: func(t *testing.T, w *world.World) {
				must(t, w.DefineVM("pve1", 9090, nil, nil))
				must(t, w.AddSnapshot(9011, "before"))
			},
			method: "POST", path: vm + "/move_disk", form: []string{"disk=scsi1", "target-vmid=9090"}, want: "500 Can't move disk used by a snapshot to another VM",
		},
		"unplug boot disk": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "PUT", path: vm + "/config", form: []string{"delete=scsi0"}, want: bad, errors: map[string]string{"scsi0": "hotplug problem - can't unplug bootdisk 'scsi0'\n"},
		},
		"agent of stopped VM": {method: "GET", path: vm + "/agent/network-get-interfaces", want: "500 VM 9011 is not running"},
		"agent not running": {
			set:    func(t *testing.T, w *world.World) { must(t, w.PowerOn(9011)) },
			method: "GET", path: vm + "/agent/network-get-interfaces", want: "500 QEMU guest agent is not running",
		},
		"no such task":    {method: "GET", path: "/nodes/pve1/tasks/UPID:pve1:0:0:0:qmstart:1:x@pve:/status", want: bad, errors: map[string]string{"upid": "no such task"}},
		"taken nextid":    {method: "GET", path: "/cluster/nextid", form: []string{"vmid=9011"}, want: bad, errors: map[string]string{"vmid": "VM 9011 already exists"}},
		"no such storage": {method: "GET", path: "/nodes/pve1/storage/nosuch/content", want: "500 storage 'nosuch' does not exist"},
		"delete an ISO":   {method: "DELETE", path: "/nodes/pve1/storage/isos/content/isos:iso%2Fboot.iso", want: "403 Permission check failed (/storage/isos, Datastore.Allocate)"},
		"switched failure": {
			set:    func(_ *testing.T, w *world.World) { w.FailNext("GET /nodes/pve1/qemu", "boom") },
			method: "GET", path: vm + "/config", want: "500 boom",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				if test.set != nil {
					test.set(t, l.world)
				}
				got := l.do(test.method, test.path, test.form...)
				got.Data = nil
				want := reply{Status: test.want, Errors: test.errors}
				if !strings.HasPrefix(test.want, "200") {
					want.Message = test.want[4:] + "\n"
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

const unknown = "property is not defined in schema and the schema does not allow additional properties"

func TestUnauthorizedIsLateAndEmpty(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		for token, want := range map[string]string{"": "401 No ticket", "recast@pve!other": "401 invalid token value!"} {
			began := time.Now()
			got := l.as(token, "GET", "/version", "", nil)
			if diff := cmp.Diff(reply{Status: want}, got); diff != "" {
				t.Error(diff)
			}
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
		}
	})
}

func TestTokenWithoutRightsSeesEmptyLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		for _, path := range []string{"/nodes/pve1/qemu", "/cluster/resources?type=vm", "/pools", "/access/acl", "/nodes/pve1/storage"} {
			if diff := cmp.Diff(reply{Status: "200 OK", Data: []any{}}, l.do("GET", path)); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if diff := cmp.Diff(reply{Status: "200 OK", Data: map[string]any{}}, l.do("GET", "/access/permissions")); diff != "" {
			t.Error(diff)
		}
		got := l.do("PUT", vm+"/config", "memory=1")
		want := "403 Permission check failed (/vms/9011, VM.Config.Memory)"
		if got.Status != want {
			t.Errorf("status %q, want %q", got.Status, want)
		}
	})
}

func TestPermissionsOfPoolAndPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.world.AddRole("Look", "VM.Audit")
		l.world.Grant(world.ACL{Path: "/pool/talos", Who: tokenID, Role: "Look", Propagate: true})
		must(t, l.world.DefineVM("pve1", 9012, map[string]string{"pool": "talos"}, nil))
		if got := l.do("GET", "/nodes/pve1/qemu/9012/config").Status; got != "200 OK" {
			t.Errorf("VM in the pool: %s", got)
		}
		if got := l.do("GET", vm+"/config").Status; got != "403 Permission check failed (/vms/9011, VM.Audit)" {
			t.Errorf("VM outside: %s", got)
		}
		want := map[string]any{"/pool/talos": map[string]any{"VM.Audit": 1.0}}
		if diff := cmp.Diff(want, l.do("GET", "/access/permissions").Data); diff != "" {
			t.Error(diff)
		}
	})
}

func TestConfigTypes(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		want := map[string]any{
			"name": "wk1", "memory": "2048", "cores": 2.0, "agent": "1", "onboot": 1.0, "scsihw": "virtio-scsi-single",
			"smbios1": "uuid=AAAAAAAA-0000-4000-8000-000000009011", "net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0",
			"efidisk0": "fast:9011/vm-9011-disk-0.raw,efitype=4m,size=528K", "scsi0": "fast:9011/vm-9011-disk-1.raw,serial=sys,size=10G",
			"scsi1": "fast:9011/vm-9011-disk-2.raw,discard=on,iothread=1,serial=data-wk1,size=5G,ssd=1",
			"ide2":  "isos:iso/boot.iso,media=cdrom,size=3", "boot": "order=scsi0;ide2",
		}
		if diff := cmp.Diff(want, l.config(9011)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestJSONBody(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		got := l.as(tokenID, "PUT", vm+"/config", "application/json", []byte(`{"onboot":false,"cores":4,"memory":"1024","tags":"talos;roll"}`))
		if diff := cmp.Diff(reply{Status: "200 OK"}, got); diff != "" {
			t.Fatal(diff)
		}
		c := l.config(9011)
		if diff := cmp.Diff([]any{0.0, 4.0, "1024", "roll;talos"}, []any{c["onboot"], c["cores"], c["memory"], c["tags"]}); diff != "" {
			t.Error(diff)
		}
	})
}

func multipart(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		fmt.Fprintf(&b, "--B\r\nContent-Disposition: form-data; name=%q", name)
		if name == "filename" {
			fmt.Fprintf(&b, "; filename=%q\r\nContent-Type: application/octet-stream\r\n\r\n%s\r\n", "../new one.iso", value)
			continue
		}
		fmt.Fprintf(&b, "\r\n\r\n%s\r\n", value)
	}
	b.WriteString("--B--\r\n")
	return b.Bytes()
}

func TestUpload(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("bytes"))
	good := "checksum=" + hex.EncodeToString(sum[:])
	tests := map[string]struct {
		storage string
		parts   []string
		want    string // status line, or the task's end
		errors  map[string]string
		stored  string
	}{
		"with checksum":        {parts: []string{"content=iso", "checksum-algorithm=sha256", good, "filename=bytes"}, want: "OK", stored: "bytes"},
		"without":              {parts: []string{"content=iso", "filename=bytes"}, want: "OK", stored: "bytes"},
		"wrong checksum":       {parts: []string{"content=iso", "checksum-algorithm=sha256", "checksum=00", "filename=bytes"}, want: "checksum mismatch: got '" + hex.EncodeToString(sum[:]) + "' != expect '00'"},
		"checksum before algo": {parts: []string{"content=iso", good, "checksum-algorithm=sha256", "filename=bytes"}, want: "400 Bad Request"},
		"unknown part":         {parts: []string{"content=iso", "x=1", "filename=bytes"}, want: "400 Bad Request"},
		"file first":           {parts: []string{"filename=bytes", "content=iso"}, want: "400 Parameter verification failed.", errors: map[string]string{"content": "property is missing and it is not optional"}},
		"not for ISOs":         {storage: "fast", parts: []string{"content=iso", "filename=bytes"}, want: "500 storage 'fast' does not support 'iso' content"},
		"block storage":        {storage: "thin", parts: []string{"content=iso", "filename=bytes"}, want: "500 can't upload to storage type 'lvmthin'"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				storage := test.storage
				if storage == "" {
					storage = "isos"
				}
				got := l.as(tokenID, "POST", "/nodes/pve1/storage/"+storage+"/upload", "multipart/form-data; boundary=B", multipart(test.parts...))
				end := got.Status
				if upid, ok := got.Data.(string); ok {
					task, _ := l.world.WaitTask(upid)
					end = task.ExitStatus
				}
				if diff := cmp.Diff(test.want, end); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(test.errors, got.Errors); diff != "" {
					t.Error(diff)
				}
				stored := ""
				if m := l.world.Media("isos:iso/new_one.iso", "pve2"); m != nil {
					stored = string(m.Bytes())
				}
				if stored != test.stored {
					t.Errorf("stored %q, want %q", stored, test.stored)
				}
			})
		})
	}
}

func TestChunkedIsRefused(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/nodes/pve1/storage/isos/upload", struct{ *strings.Reader }{strings.NewReader("x")})
		must(t, err)
		req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
		res, err := l.client.Do(req)
		must(t, err)
		_ = res.Body.Close()
		if res.Status != "501 chunked transfer encoding not supported" {
			t.Error(res.Status)
		}
	})
}
