package cluster

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestUnhealthyEtcd(t *testing.T) {
	t.Parallel()
	st := func(id, leader uint64, version string, errs ...string) EtcdStatus {
		return EtcdStatus{MemberID: id, Leader: leader, Version: version, Errors: errs}
	}
	cases := map[string]struct {
		a, b, c EtcdStatus // of cp1, cp2, cp3; zero: no answer
		except  string
		want    []string
	}{
		"healthy":                   {st(1, 1, "3.6.4"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "", nil},
		"no leader":                 {st(1, 0, ""), st(2, 0, ""), st(3, 0, ""), "cp1", []string{"cp2 knows no leader", "cp3 knows no leader"}},
		"two leaders":               {st(1, 1, ""), st(2, 1, ""), st(3, 3, ""), "", []string{"its members do not agree who leads: cp1 and cp2 say 1, cp3 say 3"}},
		"a member is gone":          {st(1, 1, ""), EtcdStatus{}, st(3, 1, ""), "", []string{"cp2 does not answer"}},
		"the one that is to go is":  {st(1, 1, ""), EtcdStatus{}, st(3, 1, ""), "cp2", nil},
		"an alarm, told by all":     {st(1, 1, "", "alarm NOSPACE on member cp3"), st(2, 1, "", "alarm NOSPACE on member cp3"), st(3, 1, ""), "", []string{"cp1: alarm NOSPACE on member cp3"}},
		"two minor versions":        {st(1, 1, "3.7.1"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "", []string{"its members are more than one minor version apart: cp3 runs 3.5.21, cp1 runs 3.7.1"}},
		"two majors":                {st(1, 1, "3.7.1"), st(2, 1, "4.0.0"), st(3, 1, "3.7.1"), "", []string{"its members are more than one minor version apart: cp1 runs 3.7.1, cp2 runs 4.0.0"}},
		"the old one is to go":      {st(1, 1, "3.7.1"), st(2, 1, "3.6.4"), st(3, 1, "3.5.21"), "cp3", nil},
		"a version that nobody has": {st(1, 1, "3.7.1"), st(2, 1, ""), st(3, 1, "3.7.1"), "", nil},
	}
	for name, c := range cases {
		v := EtcdView{Members: []EtcdMember{{ID: 1, Name: "cp1"}, {ID: 2, Name: "cp2"}, {ID: 3, Name: "cp3"}}, Statuses: map[uint64]EtcdStatus{}, Errs: map[uint64]error{}}
		for i, s := range []EtcdStatus{c.a, c.b, c.c} {
			if id := uint64(i + 1); s.MemberID != 0 {
				v.Statuses[id] = s
			} else {
				v.Errs[id] = errors.New("does not answer")
			}
		}
		if got := strings.Join(v.Unhealthy(c.except), "; "); got != strings.Join(c.want, "; ") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhereAnEtcdMemberIsReached(t *testing.T) {
	t.Parallel()
	known := []Endpoint{{"cp1", netip.MustParseAddr("10.0.0.1")}}
	for name, tc := range map[string]struct {
		member EtcdMember
		want   string // "": nowhere
	}{
		"etcd has a network of its own":     {EtcdMember{Name: "cp1", Peers: []string{"https://192.168.9.1:2380"}}, "10.0.0.1"},
		"no node of that name":              {EtcdMember{Name: "cp9", Peers: []string{"https://192.168.9.9:2380"}}, "192.168.9.9"},
		"IPv6, the second of its peer URLs": {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380", "https://[fd00::9]:2380"}}, "fd00::9"},
		"only a name":                       {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380"}}, ""},
	} {
		got, err := tc.member.Address(known)
		if (err == nil) != (tc.want != "") || err == nil && got.String() != tc.want {
			t.Errorf("%s: %s, %v, want %q", name, got, err, tc.want)
		}
	}
}
