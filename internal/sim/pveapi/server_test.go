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
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
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
	listener := must.Get(net1.Listen("127.42.7.1:8006"))(t)
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
	must.Equal(t, "Diff", "", cmp.Diff(want, got))
}

// taskOK ends the test unless a task has ended well.
func taskOK(t *testing.T, ended any) {
	t.Helper()
	must.Be(t, ended == "OK", "%v", ended)
}

// certificate is made inside the bubble, whose clock decides its validity.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pve1"}, IPAddresses: []net.IP{net.ParseIP("127.42.7.1")},
		NotBefore: time.Now(), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
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
	req := must.Get(http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body)))(l.t)
	if token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+token+"="+secret)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res := must.Get(l.client.Do(req))(l.t)
	defer func() { _ = res.Body.Close() }()
	raw := must.Get(io.ReadAll(res.Body))(l.t)
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

func (l *lab) task(method, path string, form ...string) string {
	l.t.Helper()
	r := l.do(method, path, form...)
	upid, ok := r.Data.(string)
	must.Be(l.t, ok, "%s %s: no task: %+v", method, path, r)
	t, ok := l.world.WaitTask(upid)
	must.Be(l.t, ok, "no task %s", upid)
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

func (l *lab) config(id int) map[string]any {
	l.t.Helper()
	r := l.do("GET", "/nodes/"+l.vm(id).Host+"/qemu/"+itoa(id)+"/config")
	got, ok := r.Data.(map[string]any)
	must.Be(l.t, ok, "config of %d: %+v", id, r)
	for _, key := range []string{"digest", "vmgenid", "meta"} {
		delete(got, key)
	}
	return got
}

func (l *lab) volumesOn(host, storage string) (volids []string) {
	l.t.Helper()
	list := must.Get(l.world.Volumes(storage, host))(l.t)
	for _, v := range list {
		volids = append(volids, v.Volid)
	}
	return volids
}

func itoa(n int) string { return strconv.Itoa(n) }

func inLab(t *testing.T, run func(*testing.T, *lab)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) { run(t, newLab(t, talosRole()...)) })
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
	must.Bubble(t, func(t *testing.T) {
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

func TestRecorder(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.do("GET", "/version")
		l.putOK(vm+"/config", "cores=3")
		l.do("PUT", vm+"/config", "cipassword=hidden", "args=-S", "cores=4") // refused: only root may set args
		const agent = "Go-http-client/1.1"
		want := []record.Call{
			{Seq: 1, Proto: "proxmox", Target: "pve1", Method: "GET", Path: "/api2/json/version", Params: map[string]string{}, User: tokenID, Agent: agent, Status: 200, Bytes: 65},
			{Seq: 2, Proto: "proxmox", Target: "pve1", Method: "PUT", Path: "/api2/json" + vm + "/config", Params: map[string]string{"cores": "3"}, User: tokenID, Agent: agent, Mutation: true, Status: 200, Bytes: 13},
			{Seq: 3, Proto: "proxmox", Target: "pve1", Method: "PUT", Path: "/api2/json" + vm + "/config", Params: map[string]string{"args": "-S", "cores": "4"}, User: tokenID, Agent: agent, Mutation: true, Status: 500},
		}
		same(t, want, l.rec.Calls())
		// A failed hook breaks the connection, without any effect.
		l.rec.Hooks(func(record.Call) error { return io.ErrUnexpectedEOF }, nil)
		res, err := l.client.PostForm(base+vm+"/config", url.Values{"cores": {"7"}})
		if err == nil {
			_ = res.Body.Close()
			t.Fatalf("an answer: %s", res.Status)
		}
		l.rec.Hooks(nil, func(record.Call) { l.dialer.Cut() })
		if res, err := l.client.Get(base + "/version"); err == nil {
			_ = res.Body.Close()
			t.Error("an answer in spite of the cut")
		}
		vms := l.world.VMs()
		same(t, "3", vms[0].Config["cores"])
	})
}

// guest is a firmware and its only guest: it powers off five seconds after the request.
type guest struct {
	world  *world.World
	hw     *world.Hardware
	killed chan struct{}
	deaf   bool
}

func (g *guest) PowerOn(hw *world.Hardware) world.Guest { g.hw = hw; return g }
func (g *guest) Kill()                                  { close(g.killed) }
func (g *guest) Shutdown() {
	if !g.deaf {
		time.AfterFunc(5*time.Second, g.hw.PowerOff)
	}
}

var _ world.Guest = (*guest)(nil)

func TestShutdown(t *testing.T) {
	type row struct {
		deaf bool
		form []string
		want string
		took time.Duration
	}
	tests := map[string]row{
		"clean":        {want: "OK", took: 9 * time.Second}, // a second for the task, three for the missing agent
		"deaf":         {deaf: true, form: []string{"timeout=20"}, want: "VM quit/powerdown failed - got timeout", took: 24 * time.Second},
		"deaf, forced": {deaf: true, form: []string{"timeout=20", "forceStop=1"}, want: "WARNINGS: 1", took: 24 * time.Second},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		g := &guest{world: l.world, killed: make(chan struct{}), deaf: test.deaf}
		l.world.SetFirmware(g)
		taskOK(t, l.task("POST", vm+"/status/start"))
		drives := g.hw.Drives()
		var seen []string
		for _, d := range drives {
			seen = append(seen, d.Key+" "+d.Serial)
		}
		same(t, []string{"ide2 ", "scsi0 sys", "scsi1 data-wk1"}, seen)
		same(t, "VM 9011 already running", l.task("POST", vm+"/status/start"))
		began := time.Now()
		same(t, test.want, l.task("POST", vm+"/status/shutdown", test.form...))
		same(t, test.took, time.Since(began))
		running := l.world.VMs()[0].Running
		same(t, test.want == "VM quit/powerdown failed - got timeout", running)
		if !running {
			<-g.killed
			must.Equal(t, "the dead guest still sees its drives", false, g.hw.Drives() != nil)
		}
		g.hw.PowerOff() // safe even after Kill
	})
}

func TestClosedWorldBreaksConnections(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Do(t, l.world.PowerOn(9011))
		upid := l.do("POST", vm+"/status/shutdown").Data.(string)
		ended := make(chan error)
		go func() {
			res, err := l.client.PostForm(base+"/x", nil) // the 401 takes three seconds
			if err == nil {
				_ = res.Body.Close()
				err = errors.New(res.Status)
			}
			ended <- err
		}()
		time.Sleep(2 * time.Second)
		l.world.Close()
		err := <-ended
		must.Hold(t, err.Error() != "401 No ticket", "%v", err)
		same(t, "unexpected status", l.ended(upid))
	})
}

// holdNext holds the next change.
func (l *lab) holdNext(a record.Answer) (held *record.Held, status func() (late []int)) {
	held = record.Hold(a)
	var taken bool
	var statuses []int
	l.rec.Hooks(func(call record.Call) error {
		if !call.Mutation || call.Late || taken {
			return nil
		}
		taken = true
		return held
	}, func(call record.Call) {
		if call.Late {
			statuses = append(statuses, call.Status)
		}
	})
	return held, func() []int { return statuses }
}

// sent is the result of a change whose sender has a timeout.
func (l *lab) sent(method, path, form string, patience time.Duration) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	began := time.Now()
	req := must.Get(http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(form)))(l.t)
	req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	said := "no answer"
	res, err := l.client.Do(req)
	if err == nil {
		said = res.Status
		must.Do(l.t, res.Body.Close())
	} else if errors.Is(err, context.DeadlineExceeded) {
		said = "gave up"
	}
	return fmt.Sprint(said, " after ", time.Since(began).Round(time.Second))
}

// there says whether the cluster has a VM.
func (l *lab) there(id int) bool { return l.vm(id).ID == id }

func (l *lab) settle() {
	for _, task := range l.world.Tasks() {
		l.world.WaitTask(task.UPID)
	}
}

// TestHeld: a request is processed after its sender got another answer, or none.
func TestHeld(t *testing.T) {
	type row struct {
		answer   record.Answer
		patience time.Duration
		want     string
	}
	tests := map[string]row{
		"a proxy in front has given up": {record.GatewayTimeout, time.Hour, "504 Gateway Time-out after 1m0s"},
		"all workers are busy":          {record.BusyWorkers, time.Hour, "596 Connection timed out after 30s"},
		"the connection breaks":         {record.NoAnswer, time.Hour, "no answer after 0s"},
		"the sender is gone":            {record.GatewayTimeout, 10 * time.Second, "gave up after 10s"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, c row) {
		must.Do(t, l.world.DefineVM("pve1", 9012, map[string]string{"name": "old"}, nil))
		held, late := l.holdNext(c.answer)
		same(t, c.want, l.sent("DELETE", "/nodes/pve1/qemu/9012", "", c.patience))
		time.Sleep(time.Hour)
		must.Be(t, len(l.world.Tasks()) == 0 && l.there(9012), "it was carried out before it was due")
		held.Deliver()
		l.settle()
		must.Hold(t, !l.there(9012) && len(late()) == 1 && late()[0] == http.StatusOK,
			"VM 9012 is there: %t; statuses of the late call: %v", l.there(9012), late())
		held.Deliver() // only the first call counts
		same(t, 1, len(l.world.Tasks()))
	})
}

// TestHeldMeetsWhatIsThere: the state at the time of processing counts.
func TestHeldMeetsWhatIsThere(t *testing.T) {
	type row struct {
		method, path, form string
		meanwhile          func(l *lab)
		status             int
		gone               bool
	}
	tests := map[string]row{
		"a new VM": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.do("DELETE", "/nodes/pve1/qemu/9012")
			l.settle()
			l.do("POST", "/nodes/pve1/qemu", "vmid=9012", "name=new")
			l.settle()
		}, 200, true},
		"protection": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.do("PUT", "/nodes/pve1/qemu/9012/config", "protection=1")
		}, 500, false},
		"another digest": {"PUT", "/nodes/pve1/qemu/9012/config", "name=later&digest=" + strings.Repeat("0", 40), func(*lab) {}, 500, false},
		"a token that has expired": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.world.ExpireToken(tokenID, true)
		}, 401, false},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, c row) {
		must.Do(t, l.world.DefineVM("pve1", 9012, map[string]string{"name": "old"}, nil))
		held, late := l.holdNext(record.NoAnswer)
		l.sent(c.method, c.path, c.form, time.Hour)
		c.meanwhile(l)
		held.Deliver()
		l.settle()
		must.Hold(t, len(late()) == 1 && late()[0] == c.status && l.there(9012) != c.gone,
			"late: %v, want %d; VM 9012 is there: %t", late(), c.status, l.there(9012))
	})
}

func TestHeldInTime(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		held, _ := l.holdNext(record.GatewayTimeout)
		go func() {
			time.Sleep(20 * time.Second)
			held.Deliver()
		}()
		same(t, "200 OK after 20s", l.sent("PUT", "/nodes/pve1/qemu/9011/config", "name=later", time.Hour))
		same(t, "later", l.config(9011)["name"])
	})
}

// TestHeldForEver: held requests are lost when their host crashes, or when the server ends.
func TestHeldForEver(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		held, late := l.holdNext(record.NoAnswer)
		l.sent("DELETE", "/nodes/pve1/qemu/9011", "", time.Hour)
		l.world.CrashHost("pve1")
		held.Deliver()
		must.Hold(t, len(late()) == 0 && l.there(9011), "late: %v", late())
		l.world.BootHost("pve1")
		_, _ = l.holdNext(record.NoAnswer) // never delivered
		l.sent("DELETE", "/nodes/pve1/qemu/9011", "", time.Hour)
	})
}

func TestRefusedIsNotHeld(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		held, late := l.holdNext(record.GatewayTimeout)
		same(t, "506 upload 'Content-Type 'text/plain' not implemented", l.as("root@pam!ci", "POST", "/nodes/pve1/qemu/9011/config", "text/plain", []byte("x")).Status)
		held.Deliver()
		same(t, 0, len(late()))
	})
}

// TestOthersDrop: a server that can't hold a request drops it.
func TestOthersDrop(t *testing.T) {
	t.Parallel()
	r := record.New()
	held := record.Hold(record.NoAnswer)
	r.Hooks(func(record.Call) error { return held }, nil)
	must.Hold(t, must.Err(r.Begin(record.Call{Proto: "talos"})) != nil, "it is not dropped")
	held.Deliver() // returns
}

// TestUploadParser: how file_upload_multipart of AnyEvent.pm handles unusual bodies.
func TestUploadParser(t *testing.T) {
	const (
		content = "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n"
		header  = "--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n"
		end     = "\r\n--B--\r\n"
	)
	type row struct {
		body   string
		want   string // status line, or exit status of the task
		stored string
	}
	tests := map[string]row{
		"bare newlines":              {strings.ReplaceAll(content+header+"Content-Type: x/y\r\n\r\nbytes"+end, "\r", ""), "OK", "bytes"},
		"text before":                {"hello\r\n" + content + header + "Content-Type: x/y\r\n\r\nbytes" + end, "OK", "bytes"},
		"something after":            {content + header + "Content-Type: x/y\r\n\r\nbytes" + end + "more", "OK", "bytes"},
		"spaces around a value":      {strings.Replace(content, "iso", " iso ", 1) + header + "Content-Type: x/y\r\n\r\nbytes" + end, "OK", "bytes"},
		"a boundary's beginning":     {content + header + "Content-Type: x/y\r\n\r\n\r\n--A\r\n--" + end, "OK", "\r\n--A\r\n--"},
		"no header after the name":   {content + header + "\r\nbytes\n\nrest" + end, "OK", "rest"}, // skipping ends at the next empty line
		"another header first":       {content + "--B\r\nContent-Type: x/y\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"a.iso\"\r\n\r\nbytes" + end, "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
		"another field for the file": {content + strings.Replace(header, `name="filename"`, `name="file"`, 1) + "Content-Type: x/y\r\n\r\nbytes" + end, "500 wrong field name 'file' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.", ""},
		"another disposition":        {strings.Replace(content, "form-data", "attachment", 1) + header + "\r\nbytes" + end, "500 wrong Content-Disposition 'attachment' in multipart, expected 'form-data'", ""},
		"no end":                     {content + header + "Content-Type: x/y\r\n\r\nbytes", "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
		"another boundary":           {strings.ReplaceAll(content+header+"\r\nbytes"+end, "--B", "--C"), "500 upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.", ""},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		end := l.outcome(l.as(tokenID, "POST", upload, "multipart/form-data; boundary=B", []byte(test.body)))
		same(t, test.want, end)
		stored := ""
		if m := l.world.Media("isos:iso/a.iso", "pve1"); m != nil {
			stored = string(m.Bytes())
		}
		same(t, test.stored, stored)
	})
}

// TestUploadOtherwise: a body that is not multipart gets no answer, nor does a tmpfilename parameter.
func TestUploadOtherwise(t *testing.T) {
	type row struct{ query, contentType, body string }
	inEachLab(t, map[string]row{
		"no form":     {"", "", "content=iso"},
		"tmpfilename": {"?tmpfilename=/etc/shadow", "multipart/form-data; boundary=B", string(multipart("content=iso", "filename=x"))},
	}, func(_ *testing.T, l *lab, test row) {
		l.noAnswer(upload+test.query, test.contentType, strings.NewReader(test.body), int64(len(test.body)))
	})
}

const upload = "/nodes/pve1/storage/isos/upload"

// noAnswer sends a POST that must get no answer.
func (l *lab) noAnswer(path, contentType string, body io.Reader, size int64) {
	l.t.Helper()
	req := must.Get(http.NewRequestWithContext(l.t.Context(), http.MethodPost, base+path, body))(l.t)
	req.ContentLength = size
	req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
	req.Header.Set("Content-Type", contentType)
	if res, err := l.client.Do(req); err == nil {
		_ = res.Body.Close()
		l.t.Errorf("an answer: %s", res.Status)
	}
}

// TestUploadWithoutRights: a large file that is refused ends the connection without an answer.
func TestUploadWithoutRights(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		l.noAnswer(upload, "multipart/form-data; boundary=B", io.LimitReader(zeros{}, 1<<20), 1<<20)
	})
}

// zeros is an endless file of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestLargeUpload(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	inLab(t, func(t *testing.T, l *lab) {
		const size = 192 << 20
		head := "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n" +
			"--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"large.iso\"\r\nContent-Type: x/y\r\n\r\n"
		tail := "\r\n--B--\r\n"
		req := must.Get(http.NewRequestWithContext(t.Context(), "POST", base+"/nodes/pve1/storage/isos/upload",
			io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader(tail))))(t)
		req.ContentLength = int64(len(head) + size + len(tail))
		req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
		req.Header.Set("Content-Type", "multipart/form-data; boundary=B")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		res := must.Get(l.client.Do(req))(t)
		_ = res.Body.Close()
		runtime.GC()
		runtime.ReadMemStats(&after)
		held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		must.Hold(t, held <= size/4, "%d MiB are held", held>>20)
		tasks := l.world.Tasks()
		taskOK(t, l.ended(tasks[0].UPID))
		m := l.world.Media("isos:iso/large.iso", "pve1")
		must.Hold(t, m != nil && m.Size() == size, "%v", m)
	})
}
