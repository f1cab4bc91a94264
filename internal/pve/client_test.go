package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestChangeIsNeverRepeated(t *testing.T) {
	type row struct {
		answer route
		lost   bool
	}
	cases := map[string]row{
		"proxy could not connect":  {raw("595 No route to host", ""), true},
		"proxy lost it":            {raw("596 Connection timed out", ""), true},
		"connection breaks":        {lost, true},
		"answer breaks off":        {raw("200 OK\r\nContent-Length: 99", `{"da`), true},
		"success without the task": {raw("200 OK", ""), true},
		"null instead of a task":   {data("null"), true},
		"reason of two lines":      {raw("500 detected modified\nconfiguration", ""), true},
		"no answer at all":         {after(3*time.Minute, data(`"x"`)), true},
		"refused":                  {raw("500 VM 101 is running - destroy failed", ""), false},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("DELETE /nodes/pve1/qemu/101", tc.answer)
		s.Node(t, "pve2").On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
		err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
		must.Hold(t, err != nil && errors.Is(err, cluster.ErrLostAnswer) == tc.lost,
			"error %v; want a lost answer: %v", err, tc.lost)
		must.Equal(t, "changes", []string{"DELETE /nodes/pve1/qemu/101"}, changes(pve1.Requests()))
	})
}

func TestUnreachable(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
		const want = "DELETE /nodes/pve1/qemu/101: reach Proxmox: pve1:8006: dial tcp pve1:8006: no route to host; pve2:8006: dial tcp pve2:8006: no route to host"
		must.Hold(t, fmt.Sprint(err) == want && !errors.Is(err, cluster.ErrLostAnswer), "error is %v\nwant    %s", err, want)
		hints := fault.Hints(err)
		must.Hold(t, len(hints) == 1 && strings.Contains(hints[0], "proxmox.endpoints"), "hints: %q", hints)
	})
}

func TestServerThatNeverSpeaks(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		c := s.clientWith(t, api.Options{Dial: apitest.SilentDial}, "pve1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		took := time.Since(start)
		must.Hold(t, err != nil && took <= 2*time.Minute, "error %v after %s", err, took)
		must.Hold(t, !errors.Is(err, cluster.ErrLostAnswer), "nothing was sent, yet: %v", err)
	})
}

func TestCancelledChange(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("DELETE /nodes/pve1/qemu/101", after(10*time.Second, data(`"`+testUPID+`"`)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		must.Hold(t, errors.Is(err, cluster.ErrLostAnswer) && errors.Is(err, context.DeadlineExceeded), "error is %v", err)
		err = c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		must.Hold(t, !errors.Is(err, cluster.ErrLostAnswer) && errors.Is(err, context.DeadlineExceeded),
			"after the deadline: %v", err)
	})
}

func TestSecretIsNeverShown(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		var authorized atomic.Bool
		pve1.On("GET /access/permissions?path=%2F", func(w http.ResponseWriter, r *http.Request) {
			authorized.Store(r.Header.Get("Authorization") == "PVEAPIToken="+apitest.Token)
			raw("500 who is "+apitest.Secret, `{"message":"`+apitest.Secret+`","errors":{"a":"`+apitest.Secret+`"}}`)(w, r)
		})
		_, err := c.Permissions(t.Context(), "/")
		e, ok := errors.AsType[*api.Error](err)
		if !ok || !authorized.Load() {
			t.Fatalf("error %v, authorized %v", err, authorized.Load())
		}
		o := api.Options{Token: []byte(apitest.Token)}
		for _, s := range []string{fmt.Sprintf("%v %+v", err, *e), fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprintf("%v %+v %#v", o, o, o)} {
			must.Hold(t, !strings.Contains(s, apitest.Secret), "shows the secret: %s", s)
		}
	})
}

func TestAuthorizationHints(t *testing.T) {
	type row struct {
		answer route
		kind   fault.Kind
		hint   string
	}
	onEachNode(t, map[string]row{
		"unknown token":     {raw("401 invalid token value!", ""), fault.Failed, "PROXMOX_VE_API_TOKEN is user@realm!id=uuid"},
		"missing privilege": {raw("403 Permission check failed (/vms/9011, VM.Config.Disk)", ""), fault.Refused, "recast@pve!roll needs VM.Config.Disk on /vms/9011, and so does its user: recast doctor"},
		"forbidden":         {raw("403 Permission check failed", ""), fault.Refused, "pveum user token permissions recast@pve roll"},
	}, func(t *testing.T, pve1 *fake, c *Client, tc row) {
		pve1.On("GET /cluster/status", tc.answer)
		_, err := c.Quorate(t.Context())
		hints := fault.Hints(err)
		must.Hold(t, len(hints) == 1 && strings.Contains(hints[0], tc.hint), "hints of %v: %q", err, hints)
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
	})
}

// TestRemember: a client with a memory reads lasting answers once, however many
// concurrent callers there are. Errors are not kept, and VMs are read each time.
func TestRemember(t *testing.T) {
	const path = "GET /access/permissions?path=%2Fvms"
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On(path, after(10*time.Millisecond, raw("403 Permission check failed", "")), after(10*time.Millisecond, data(`{"/vms":{"VM.Audit":1}}`)), data(`{}`))
		pve1.On(listPath, data(`[]`))
		asked := func(path string, want int) {
			t.Helper()
			must.Equal(t, path, want, len(slices.DeleteFunc(pve1.Requests(), func(r string) bool { return r != path })))
		}
		c.Remember()
		e, is := errors.AsType[*api.Error](func() error { _, err := c.Permissions(t.Context(), "/vms"); return err }())
		must.Hold(t, is && e.Status == 403, "error is %v", e)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				held, err := c.Permissions(t.Context(), "/vms")
				must.Hold(t, err == nil && held["VM.Audit"], "%v, %v", held, err)
			})
		}
		all.Wait()
		asked(path, 2)
		for range 2 {
			must.Get(c.Listed(t.Context()))(t)
		}
		asked(listPath, 2)
	})
}

// Everything that Proxmox says in an answer becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	evil := string(must.Get(json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"))(t))
	const change = "DELETE /nodes/pve1/qemu/101"
	ended := data(`"` + testUPID + `"`)
	log := data(`[{"n":1,"t":` + evil + `}]`)
	onEachNode(t, map[string]map[string]route{
		"status line": {change: raw("500 bad\x1b[31m \u202efake line", "")},
		"message":     {change: raw("500 Internal Server Error", `{"message":`+evil+`}`)},
		"parameter":   {change: raw("400 Parameter verification failed.", `{"errors":{`+evil+`:`+evil+`}}`)},
		"plain text":  {change: raw("500 ", "bad\x1b[31m fake line\r\n")},
		"task's end":  {change: ended, statusPath: data(`{"status":"stopped","exitstatus":` + evil + `}`), logPath: log},
		"task's log":  {change: ended, statusPath: stopped("unexpected status"), logPath: log},
		"warnings":    {change: ended, statusPath: stopped("WARNINGS: 1"), logPath: log},
		"setting":     {"GET /nodes/pve1/qemu/101/config": data("{\"net0\":[\"bad\",\n\t\"fake line\"]}")},
	}, func(t *testing.T, pve1 *fake, c *Client, answers map[string]route) {
		pve1.On("GET /nodes/pve1/qemu/101/config", data(`{"digest":"d"}`))
		pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[]`))
		for request, answer := range answers {
			pve1.On(request, answer)
		}
		vm := cluster.VM{ID: 101, Host: "pve1", Digest: "d"}
		err := c.readConfig(t.Context(), &vm)
		if err == nil {
			err = c.DeleteVM(t.Context(), vm)
		}
		must.Fail(t, err, "bad", "fake line")
		must.Hold(t, !strings.ContainsAny(fmt.Sprint(err), "\x1b\a\r\n\u202e\u2028\x7f"), "%q", err)
	})
}

// changeKind is a kind of request that changes something.
type changeKind struct {
	request string // method and path; "*" for the variable parts
	send    func(*testing.T, lab) error
}

// kindsOfChange are all of them, by the function that names their method.
func kindsOfChange() map[string][]changeKind {
	all := vmChanges()
	maps.Copy(all, isoChanges())
	maps.Copy(all, firewallKinds())
	return all
}

const onVM = "/nodes/*/qemu/*"

// vmChanges are those of which TestLostAnswer also loses the answers.
func vmChanges() map[string][]changeKind {
	all := lostChanges()
	kind := func(request, name string) changeKind {
		return changeKind{request, func(t *testing.T, l lab) error {
			if all[name].prepare != nil {
				all[name].prepare(t, l)
			}
			return all[name].do(t, l)
		}}
	}
	return map[string][]changeKind{
		"CreateVM":     {kind("POST /nodes/*/qemu", "create")},
		"configChange": {kind("PUT "+onVM+"/config", "set"), kind("POST "+onVM+"/config", "set a drive")},
		"DeleteVM":     {kind("DELETE "+onVM, "delete")},
		"GrowDisk":     {kind("PUT "+onVM+"/resize", "grow a disk")},
		"SetPool":      {kind("PUT /pools", "set its pool")},
		"MoveDisk":     {kind("POST "+onVM+"/move_disk", "move a disk")},
		"switchTo": {
			kind("POST "+onVM+"/status/start", "start"), kind("POST "+onVM+"/status/stop", "stop"),
			kind("POST "+onVM+"/status/shutdown", "shut down"),
		},
		"Migrate":        {kind("POST "+onVM+"/migrate", "migrate")},
		"AddHA":          {kind("POST /cluster/ha/resources", "put into HA")},
		"SetHA":          {kind("PUT /cluster/ha/resources/*", "change in HA")},
		"removeResource": {kind("DELETE /cluster/ha/resources/*", "take out of HA")},
	}
}

func isoChanges() map[string][]changeKind {
	upload := func(t *testing.T, l lab) error { return l.Upload(t.Context(), isoOf(t, []byte("talos"))) }
	return map[string][]changeKind{
		"sendISO": {{"POST /nodes/*/storage/*/upload", upload}},
		"Download": {{"POST /nodes/*/storage/*/download-url", func(t *testing.T, l lab) error {
			must.Hold(t, nil != l.Download(t.Context(), images.Download{Host: "pve1", Storage: "isos", Name: "a.iso", URL: "https://factory.example/a.iso", SHA256: strings.Repeat("0", 64)}), "a host without a network has downloaded something")
			return nil
		}}},
		"DeleteISO": {{"DELETE /nodes/*/storage/*/content/*", func(t *testing.T, l lab) error {
			must.Do(t, upload(t, l))
			l.may("Datastore.Allocate")
			return l.DeleteISO(t.Context(), images.StoredISO{Host: "pve1", Storage: "isos", Name: "recast-1.iso"})
		}}},
	}
}

func firewallKinds() map[string][]changeKind {
	had := world.Firewall{
		Options: map[string]string{"enable": "1", "policy_in": "DROP"}, Aliases: []world.FirewallAlias{{Name: "old", CIDR: "192.0.2.1"}},
		IPSets: []world.FirewallSet{{Name: "old", Members: []world.FirewallMember{{CIDR: "192.0.2.1"}}}}, Rules: []world.FirewallRule{{"type": "in", "action": "ACCEPT", "enable": "1"}},
	}
	exchange := func(t *testing.T, l lab) error {
		l.world.SetFirewall(9011, had)
		return l.SetFirewall(t.Context(), l.read(t, 9011), cluster.FirewallConfig{
			Options: cluster.FirewallEntry{"enable": "1", "dhcp": "0"}, Aliases: []cluster.FirewallEntry{{"name": "new", "cidr": "192.0.2.0/24", "comment": "a net"}},
			Sets: []cluster.FirewallSet{{Name: "new", Comment: "a set", Members: []cluster.FirewallEntry{{"cidr": "192.0.2.2", "nomatch": "1", "comment": "not it"}}}},
			Rules: []cluster.FirewallEntry{
				{"type": "in", "action": "DROP", "enable": "1", "source": "+new", "dest": "new", "proto": "tcp", "dport": "50000", "sport": "1:1024", "iface": "net0", "log": "info", "comment": "first"},
				{"type": "group", "action": "kubernetes", "enable": "0"},
				{"type": "out", "action": "ACCEPT", "enable": "1", "macro": "Ping"},
				{"type": "in", "action": "ACCEPT", "enable": "1", "proto": "icmp", "icmp-type": "echo-request"},
			},
		})
	}
	var kinds []changeKind
	for _, request := range []string{"POST /rules", "DELETE /rules/*", "PUT /options", "POST /aliases", "DELETE /aliases/*", "POST /ipset", "POST /ipset/*", "DELETE /ipset/*"} {
		method, at, _ := strings.Cut(request, " ")
		kinds = append(kinds, changeKind{method + " " + onVM + "/firewall" + at, exchange})
	}
	return map[string][]changeKind{"firewallChanges": kinds}
}

// may gives the token a privilege that an ordinary one lacks.
func (l lab) may(privilege string) {
	l.world.AddRole("More", privilege)
	for _, who := range []string{"recast@pve", "recast@pve!roll"} {
		l.world.Grant(world.ACL{Path: "/", Who: who, Role: "More", Propagate: true})
	}
}

// TestEveryKindOfChange sends every kind of change of this package, to check each
// against the schema of Proxmox's API where there is one.
func TestEveryKindOfChange(t *testing.T) {
	kinds := map[string]changeKind{}
	for _, list := range kindsOfChange() {
		for _, c := range list {
			kinds[c.request] = c
		}
	}
	inEachLab(t, kinds, func(t *testing.T, l lab, c changeKind) {
		must.Do(t, c.send(t, l))
		must.Hold(t, slices.ContainsFunc(l.recorder.Calls(), c.is), "no such request was sent")
	})
}

func (c changeKind) is(call record.Call) bool {
	asked, _, _ := strings.Cut(call.Path, "?")
	ok, err := path.Match(c.request, call.Method+" "+strings.TrimPrefix(asked, "/api2/json"))
	return ok && err == nil
}

// TestEveryKindOfChangeIsKnown finds the functions of this package that name a
// changing method: each needs an entry above.
func TestEveryKindOfChangeIsKnown(t *testing.T) {
	t.Parallel()
	var found []string
	for _, file := range must.Get(filepath.Glob("*.go"))(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && namesMethod(f) {
				found = append(found, f.Name.Name)
			}
		}
	}
	slices.Sort(found)
	must.Equal(t, "functions that name such a method", slices.Sorted(maps.Keys(kindsOfChange())), found)
}

func namesMethod(f *ast.FuncDecl) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			x, isName := s.X.(*ast.Ident)
			found = found || isName && x.Name == "http" && slices.Contains([]string{"MethodPost", "MethodPut", "MethodDelete", "MethodPatch"}, s.Sel.Name)
		}
		return !found
	})
	return found
}

// testUPID names a task on pve1.
const testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"

type (
	route = apitest.Route
	fake  = apitest.Fake

	routes = map[string][]route // answers in turn, by request
)

var (
	data, raw, after, changes = apitest.Data, apitest.Raw, apitest.After, apitest.Changes

	lost route = apitest.Lost
)

// site is a network with fakes of Proxmox nodes.
type site struct{ *apitest.Site }

func newSite(t *testing.T) site { return site{apitest.NewSite(t)} }

// client returns a client of the given hosts that trusts the site's certificate.
func (s site) client(t *testing.T, hosts ...string) *Client {
	t.Helper()
	return s.clientWith(t, api.Options{RootCAs: s.Pool(), Poll: time.Second}, hosts...)
}

func (s site) clientWith(t *testing.T, o api.Options, hosts ...string) *Client {
	t.Helper()
	for _, h := range hosts {
		o.Endpoints = append(o.Endpoints, "https://"+h+":8006")
	}
	if o.Token == nil {
		o.Token = []byte(apitest.Token)
	}
	if o.Dial == nil {
		o.Dial = s.Net.Dialer().DialContext
	}
	c := must.Get(New(o))(t)
	t.Cleanup(c.Close)
	return c
}

// onNode runs a test in a bubble with a fake of one node and a client of it.
func onNode(t *testing.T, test func(t *testing.T, pve1 *fake, c *Client)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) {
		s := newSite(t)
		test(t, s.Node(t, "pve1"), s.client(t, "pve1"))
	})
}

func onEachNode[T any](t *testing.T, rows map[string]T, test func(t *testing.T, pve1 *fake, c *Client, row T)) {
	t.Helper()
	must.Bubbles(t, rows, func(t *testing.T, row T) {
		s := newSite(t)
		test(t, s.Node(t, "pve1"), s.client(t, "pve1"), row)
	})
}

// inLab runs a test in a lab of its own, beside the others.
func inLab(t *testing.T, test func(t *testing.T, l lab)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) { test(t, newLab(t)) })
}

func inEachLab[T any](t *testing.T, rows map[string]T, test func(t *testing.T, l lab, row T)) {
	t.Helper()
	must.Bubbles(t, rows, func(t *testing.T, row T) { test(t, newLab(t), row) })
}

// wantError requires an error that wraps is and has part in its text, or none if neither is given.
func wantError(t *testing.T, err, is error, part string) {
	t.Helper()
	if is == nil && part == "" {
		must.Do(t, err)
	} else if err == nil || !strings.Contains(err.Error(), part) || is != nil && !errors.Is(err, is) {
		t.Errorf("error is %v, want %v with %q in it", err, is, part)
	}
}

// obedient is a guest that powers off on request, after a while.
type obedient struct{ hw *world.Hardware }

func (g obedient) PowerOn(hw *world.Hardware) world.Guest { return obedient{hw} }
func (g obedient) Shutdown()                              { time.AfterFunc(5*time.Second, g.hw.PowerOff) }
func (g obedient) Kill()                                  {}

// lab is a simulated Proxmox host, and our client with the privileges of an ordinary token.
type lab struct {
	*Client
	site     site
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
	must.Do(t, err)
	s, rec := newSite(t), record.New()
	apidoctest.Check(t, rec)
	server := pveapi.New(w, rec, "pve1")
	server.Serve(must.Get(s.Net.Listen("pve1:8006"))(t), s.Cert)
	t.Cleanup(func() { _ = server.Close() })
	return lab{world: w, Client: s.client(t, "pve1"), recorder: rec, site: s}
}

// read reads a VM that must be there.
func (l lab) read(t *testing.T, id cluster.VMID) cluster.VM {
	t.Helper()
	return must.Get(l.VM(t.Context(), id))(t)
}

// TestVolumesOfEachHost: on a local storage, the same volid names a different volume on each host, or none.
func TestVolumesOfEachHost(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		ctx := t.Context()
		l.world.AddStorage(world.Storage{ID: "pool", Type: "dir", Shared: true, Content: []string{"images"}})
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1", "scsi1": "pool:1"}, nil))
		for _, c := range []struct {
			host, storage string
			owner         cluster.VMID
			want          bool
		}{
			{"pve1", "fast", 9011, true},
			{"pve2", "fast", 9011, false},
			{"pve1", "fast", 9021, false},
			{"pve2", "fast", 9021, true},
			{"pve1", "pool", 9021, true},
			{"pve2", "pool", 9021, true},
		} {
			volid := fmt.Sprintf("%s:%d/vm-%[2]d-disk-0.raw", c.storage, c.owner)
			has := must.Get(l.HasVolume(ctx, c.host, volid))(t)
			owned := must.Get(l.OwnedVolumes(ctx, c.host, c.storage, c.owner))(t)
			must.Equal(t, volid+" on "+c.host, [2]bool{c.want, c.want}, [2]bool{has, slices.Contains(owned, volid)})
		}
	})
}
