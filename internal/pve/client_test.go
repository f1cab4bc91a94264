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
	"github.com/recast-sh/recast/internal/sim/must"
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
	inEachBubble(t, cases, func(t *testing.T, tc row) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On("DELETE /nodes/pve1/qemu/101", tc.answer)
		s.Node(t, "pve2").On("DELETE /nodes/pve1/qemu/101", data(`"`+testUPID+`"`))
		err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
		if err == nil || errors.Is(err, cluster.ErrLostAnswer) != tc.lost {
			t.Errorf("error %v; want a lost answer: %v", err, tc.lost)
		}
		must.Equal(t, "changes", []string{"DELETE /nodes/pve1/qemu/101"}, changes(pve1.Requests()))
	})
}

func TestUnreachable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSite(t)
		err := s.client(t, "pve1", "pve2").DeleteVM(t.Context(), cluster.VM{ID: 101, Host: "pve1"})
		const want = "DELETE /nodes/pve1/qemu/101: reach Proxmox: pve1:8006: dial tcp pve1:8006: no route to host; pve2:8006: dial tcp pve2:8006: no route to host"
		if fmt.Sprint(err) != want || errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("error is %v\nwant    %s", err, want)
		}
		if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], "proxmox.endpoints") {
			t.Errorf("hints: %q", hints)
		}
	})
}

func TestServerThatNeverSpeaks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSite(t)
		c := s.clientWith(t, api.Options{Dial: apitest.SilentDial}, "pve1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if took := time.Since(start); err == nil || took > 2*time.Minute {
			t.Errorf("error %v after %s", err, took)
		}
		if errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("nothing was sent, yet: %v", err)
		}
	})
}

func TestCancelledChange(t *testing.T) {
	onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
		pve1.On("DELETE /nodes/pve1/qemu/101", after(10*time.Second, data(`"`+testUPID+`"`)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if !errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		err = c.DeleteVM(ctx, cluster.VM{ID: 101, Host: "pve1"})
		if errors.Is(err, cluster.ErrLostAnswer) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
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
			if strings.Contains(s, apitest.Secret) {
				t.Errorf("shows the secret: %s", s)
			}
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
		if hints := fault.Hints(err); len(hints) != 1 || !strings.Contains(hints[0], tc.hint) {
			t.Errorf("hints of %v: %q", err, hints)
		}
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
		if e, is := errors.AsType[*api.Error](func() error { _, err := c.Permissions(t.Context(), "/vms"); return err }()); !is || e.Status != 403 {
			t.Errorf("error is %v", e)
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				held, err := c.Permissions(t.Context(), "/vms")
				if err != nil || !held["VM.Audit"] {
					t.Errorf("%v, %v", held, err)
				}
			})
		}
		all.Wait()
		asked(path, 2)
		for range 2 {
			if _, err := c.Listed(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		asked(listPath, 2)
	})
}

// Everything that Proxmox says in an answer becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	quoted := must.Get(json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"))(t)
	evil := string(quoted)
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
		if err == nil {
			t.Fatal("no error")
		}
		if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
			t.Errorf("%q", text)
		}
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
			err := l.Download(t.Context(), images.Download{
				Host: "pve1", Storage: "isos", Name: "a.iso", URL: "https://factory.example/a.iso", SHA256: strings.Repeat("0", 64),
			})
			if err == nil {
				return errors.New("a host without a network has downloaded something")
			}
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
		if !slices.ContainsFunc(l.recorder.Calls(), c.is) {
			t.Error("no such request was sent")
		}
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
	files := must.Get(filepath.Glob("*.go"))(t)
	var found []string
	for _, file := range files {
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
	want := slices.Sorted(maps.Keys(kindsOfChange()))
	slices.Sort(found)
	must.Equal(t, "functions that name such a method", want, found)
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
