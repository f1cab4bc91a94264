package pve

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

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
			must(t, upload(t, l))
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
	t.Parallel()
	for _, list := range kindsOfChange() {
		for _, c := range list {
			runInBubble(t, c.request, func(t *testing.T) {
				l := newLab(t)
				must(t, c.send(t, l))
				if !slices.ContainsFunc(l.recorder.Calls(), c.is) {
					t.Error("no such request was sent")
				}
			})
		}
	}
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
	files, err := filepath.Glob("*.go")
	must(t, err)
	var found []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && namesMethod(f) {
				found = append(found, f.Name.Name)
			}
		}
	}
	want := slices.Sorted(maps.Keys(kindsOfChange()))
	slices.Sort(found)
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("functions that name such a method (-known +found):\n%s", diff)
	}
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
