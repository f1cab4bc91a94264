package contract

import (
	"net/http"
	"strings"
	"testing"
)

// wall gives a VM a firewall with rules that name a set, which names an alias.
func (s *server) wall(id int) {
	s.t.Helper()
	at := s.vm(id, "firewall")
	for _, request := range [][]string{
		{http.MethodPost, "/aliases", "name=Desk", "cidr=192.0.2.7", "comment=Alice's"},
		{http.MethodPost, "/ipset", "name=admins", "comment=who may"},
		{http.MethodPost, "/ipset/admins", "cidr=192.0.2.128/28"},
		{http.MethodPost, "/ipset/admins", "cidr=192.0.2.130", "nomatch=1", "comment=but not this"},
		{http.MethodPost, "/rules", "type=in", "action=ACCEPT", "enable=1", "proto=tcp", "dport=50000", "source=+admins"},
		{http.MethodPost, "/rules", "type=in", "action=DROP", "source=desk", "comment=comes before it"},
		{http.MethodPut, "/options", "enable=1", "policy_in=DROP"},
	} {
		if r := s.do(request[0], at+request[1], request[2:]...); r.Code != http.StatusOK {
			s.t.Fatalf("%s: %s %v", strings.Join(request, " "), r.Status, r.Errors)
		}
	}
}

// firewall is a VM's whole firewall, without checksums.
func (s *server) firewall(id int) map[string]any {
	s.t.Helper()
	out := map[string]any{}
	for _, part := range []string{"aliases", "ipset", "ipset/admins", "options", "rules"} {
		data := s.get(s.vm(id, "firewall/"+part))
		rows, isList := data.([]any)
		if !isList {
			rows = []any{data}
		}
		for _, row := range rows {
			o := object(s.t, row)
			delete(o, "digest")
			delete(o, "ipversion") // in rules and aliases
			for key, value := range o {
				o[key] = text(value)
			}
		}
		out[part] = rows
	}
	return out
}

func TestFirewall(t *testing.T) {
	story(t, "a rule is added before all others, and is off unless it says otherwise", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.wall(id)
		want := map[string]any{
			"aliases":      []any{map[string]any{"name": "Desk", "cidr": "192.0.2.7", "comment": "Alice's"}},
			"ipset":        []any{map[string]any{"name": "admins", "comment": "who may"}},
			"ipset/admins": []any{map[string]any{"cidr": "192.0.2.128/28"}, map[string]any{"cidr": "192.0.2.130", "nomatch": "1", "comment": "but not this"}},
			"options":      []any{map[string]any{"enable": "1", "policy_in": "DROP"}},
			"rules": []any{
				map[string]any{"pos": "0", "type": "in", "action": "DROP", "enable": "0", "source": "desk", "comment": "comes before it"},
				map[string]any{"pos": "1", "type": "in", "action": "ACCEPT", "enable": "1", "proto": "tcp", "dport": "50000", "source": "+admins"},
			},
		}
		same(t, want, s.firewall(id))
	})
	story(t, "what it names must be there", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		for source, want := range map[string]string{"nobody": "no such alias 'nobody'", "+nobody": "no such ipset 'nobody'"} {
			r := s.do(http.MethodPost, s.vm(id, "firewall/rules"), "type=in", "action=DROP", "source="+source)
			if got := strings.TrimSpace(r.Errors["source"]); r.Code != http.StatusBadRequest || got != want {
				t.Errorf("%s: %s, source: %s", source, r.Status, got)
			}
		}
	})
	story(t, "it goes with the VM", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		s.wall(id)
		s.taskOK(http.MethodDelete, s.vm(id, ""))
		s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", "vmid="+itoa(id))
		if rows := list(t, s.get(s.vm(id, "firewall/rules"))); len(rows) > 0 {
			t.Errorf("a new VM under its number has %v", rows)
		}
	})
}
