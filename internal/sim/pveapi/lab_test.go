package pveapi_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	tokenID = "recast@pve!lab"
	secret  = "11111111-2222-3333-4444-555555555555"
	base    = "https://127.42.7.1:8006/api2/json"
)

// lab is a datacentre of two hosts with one VM, and a client of it.
type lab struct {
	t      *testing.T
	world  *world.World
	rec    *record.Recorder
	dialer *network.Dialer
	client *http.Client
	data   *world.Media // of VM 9011's scsi1
}

// talosRole is the role of a token for Talos VMs.
func talosRole() []string {
	return []string{
		"VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.GuestAgent.Audit", "Datastore.AllocateSpace",
		"Datastore.Audit", "Datastore.AllocateTemplate", "SDN.Use", "Sys.Audit", "Pool.Audit",
	}
}

func newLab(t *testing.T, privileges ...string) *lab {
	t.Helper()
	w := world.New(world.Options{Cluster: "lab"})
	l := &lab{t: t, world: w, rec: record.New(), data: world.NewMedia([]byte("precious"))}
	w.AddHost("pve1")
	w.AddHost("pve2")
	w.AddStorage(world.Storage{ID: "isos", Type: "cephfs", Shared: true, Content: []string{"iso"}})
	w.AddStorage(world.Storage{ID: "fast", Type: "dir", Content: []string{"images"}, Capacity: 100 << 30})
	w.AddStorage(world.Storage{ID: "thin", Type: "lvmthin", Content: []string{"images"}})
	w.AddToken(world.Token{ID: "root@pam!ci", Secret: secret})
	w.AddToken(world.Token{ID: tokenID, Secret: secret, Privsep: true})
	w.AddRole("Talos", privileges...)
	w.Grant(world.ACL{Path: "/", Who: "recast@pve", Role: world.Administrator, Propagate: true})
	if len(privileges) > 0 {
		w.Grant(world.ACL{Path: "/", Who: tokenID, Role: "Talos", Propagate: true})
	}
	must.Do(t, w.AddISO("isos", "pve1", "boot.iso", []byte("iso")))
	must.Do(t, w.DefineVM("pve1", 9011, map[string]string{
		"name": "wk1", "memory": "2048", "cores": "2", "smbios1": "uuid=AAAAAAAA-0000-4000-8000-000000009011",
		"net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0", "scsihw": "virtio-scsi-single", "agent": "1", "onboot": "1",
		"scsi0": "fast:10,serial=sys", "scsi1": "fast:5,serial=data-wk1,discard=on,ssd=1,iothread=1", "efidisk0": "fast:1,efitype=4m",
		"ide2": "isos:iso/boot.iso,media=cdrom", "boot": "order=scsi0;ide2",
	}, map[string]*world.Media{"scsi1": l.data}))
	w.Protect(world.Protected{Serial: "data-wk1", Media: l.data})

	net1 := network.Memory()
	listener, err := net1.Listen("127.42.7.1:8006")
	must.Do(t, err)
	server := pveapi.New(w, l.rec, "pve1")
	server.Serve(listener, certificate(t))
	l.dialer = net1.Dialer()
	transport := &http.Transport{DialContext: l.dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	l.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		w.Close()
		must.Do(t, server.Close())
	})
	return l
}

func same(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// taskOK ends the test unless a task has ended well.
func taskOK(t *testing.T, ended any) {
	t.Helper()
	if ended != "OK" {
		t.Fatal(ended)
	}
}

// certificate is made inside the bubble, whose clock decides its validity.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pve1"}, IPAddresses: []net.IP{net.ParseIP("127.42.7.1")},
		NotBefore: time.Now(), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.Do(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

type reply struct {
	Status  string
	Message string
	Errors  map[string]string
	Data    any
	Plain   string // the body, if it is not JSON
}

func (l *lab) as(token, method, path, contentType string, body []byte) reply {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	must.Do(l.t, err)
	if token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+token+"="+secret)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := l.client.Do(req)
	must.Do(l.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	must.Do(l.t, err)
	out := reply{Status: res.Status, Plain: string(raw)}
	if res.Header.Get("Content-Type") != "" {
		out.Plain = ""
		must.Do(l.t, json.Unmarshal(raw, &out))
	}
	return out
}

// do sends a form of "key=value" pairs.
func (l *lab) do(method, path string, form ...string) reply {
	l.t.Helper()
	return l.send(tokenID, method, path, form...)
}

// root is do with a token of root's, which holds every privilege.
func (l *lab) root(method, path string, form ...string) reply {
	l.t.Helper()
	return l.send("root@pam!ci", method, path, form...)
}

func (l *lab) send(token, method, path string, form ...string) reply {
	l.t.Helper()
	values := url.Values{}
	for _, f := range form {
		name, value, _ := strings.Cut(f, "=")
		values.Set(name, value)
	}
	if method == http.MethodGet || method == http.MethodDelete {
		if len(values) > 0 {
			path += "?" + values.Encode()
		}
		return l.as(token, method, path, "", nil)
	}
	return l.as(token, method, path, "application/x-www-form-urlencoded", []byte(values.Encode()))
}

// task sends a form, waits for the task that it starts and returns its exit status.
func (l *lab) task(method, path string, form ...string) string {
	l.t.Helper()
	r := l.do(method, path, form...)
	upid, ok := r.Data.(string)
	if !ok {
		l.t.Fatalf("%s %s: no task: %+v", method, path, r)
	}
	t, ok := l.world.WaitTask(upid)
	if !ok {
		l.t.Fatalf("no task %s", upid)
	}
	return t.ExitStatus
}

// outcome is the exit status of the task that an answer names, or else the answer's status.
func (l *lab) outcome(r reply) string {
	upid, ok := r.Data.(string)
	if !ok {
		return r.Status
	}
	return l.ended(upid)
}

// ended waits for a task and returns its exit status.
func (l *lab) ended(upid string) string {
	t, _ := l.world.WaitTask(upid)
	return t.ExitStatus
}

// vm is a VM on any host; one without a number if there is none.
func (l *lab) vm(id int) world.VM {
	vms := l.world.VMs()
	i := slices.IndexFunc(vms, func(vm world.VM) bool { return vm.ID == id })
	if i < 0 {
		return world.VM{}
	}
	return vms[i]
}

// config is a VM's configuration without generated values.
func (l *lab) config(id int) map[string]any {
	l.t.Helper()
	r := l.do("GET", "/nodes/"+l.vm(id).Host+"/qemu/"+itoa(id)+"/config")
	got, ok := r.Data.(map[string]any)
	if !ok {
		l.t.Fatalf("config of %d: %+v", id, r)
	}
	for _, key := range []string{"digest", "vmgenid", "meta"} {
		delete(got, key)
	}
	return got
}

// volumesOn lists the volids of a storage of a host.
func (l *lab) volumesOn(host, storage string) (volids []string) {
	l.t.Helper()
	list, err := l.world.Volumes(storage, host)
	must.Do(l.t, err)
	for _, v := range list {
		volids = append(volids, v.Volid)
	}
	return volids
}

func itoa(n int) string { return strconv.Itoa(n) }

// inLab runs a test in a lab of its own, beside the others.
func inLab(t *testing.T, run func(*testing.T, *lab)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { run(t, newLab(t, talosRole()...)) })
}

// inEachLab runs each row of a table in a lab of its own, all at the same time.
func inEachLab[T any](t *testing.T, rows map[string]T, run func(*testing.T, *lab, T)) {
	t.Helper()
	t.Parallel()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { inLab(t, func(t *testing.T, l *lab) { run(t, l, row) }) })
	}
}

const vm = "/nodes/pve1/qemu/9011"

func TestPermissionsOfPoolAndPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.world.AddRole("Look", "VM.Audit")
		l.world.Grant(world.ACL{Path: "/pool/talos", Who: tokenID, Role: "Look", Propagate: true})
		must.Do(t, l.world.DefineVM("pve1", 9012, map[string]string{"pool": "talos"}, nil))
		same(t, "200 OK", l.do("GET", "/nodes/pve1/qemu/9012/config").Status)
		same(t, "403 Permission check failed (/vms/9011, VM.Audit)", l.do("GET", vm+"/config").Status)
		want := map[string]any{"/pool/talos": map[string]any{"VM.Audit": 1.0}, "/vms/9012": map[string]any{"VM.Audit": 0.0}} // 0: does not propagate
		same(t, want, l.do("GET", "/access/permissions").Data)
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

// Checksums of the file with that one HA resource, and of no firewall file.
const (
	haDigest   = "a8aa4cbd08aaaef82dc79c5be359e3a2987b7da5"
	noFirewall = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
)

func TestReads(t *testing.T) {
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
		same(t, reply{Status: "200 OK", Data: test.want}, l.do("GET", test.path))
	})
}
