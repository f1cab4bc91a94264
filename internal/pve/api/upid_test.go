package api

import (
	"strings"
	"testing"
	"time"
)

func TestParseUPID(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		in   string
		want UPID
		err  bool
	}{
		"delete": {
			in:   testUPID,
			want: UPID{Raw: testUPID, Node: "pve1", Type: "qmdestroy", ID: "101", User: "recast@pve!roll", Start: time.Unix(0x386D4380, 0), Ticks: 0x12345},
		},
		"reassign": {
			in:   "UPID:pve1:0000ABCD:0123456789:386D4380:qmmove:100-scsi1>200-scsi5:root@pam:",
			want: UPID{Raw: "UPID:pve1:0000ABCD:0123456789:386D4380:qmmove:100-scsi1>200-scsi5:root@pam:", Node: "pve1", Type: "qmmove", ID: "100-scsi1>200-scsi5", User: "root@pam", Start: time.Unix(0x386D4380, 0), Ticks: 0x123456789},
		},
		"without object": {
			in:   "UPID:n:1:2:3:imgcopy::root@pam:",
			want: UPID{Raw: "UPID:n:1:2:3:imgcopy::root@pam:", Node: "n", Type: "imgcopy", User: "root@pam", Start: time.Unix(3, 0), Ticks: 2},
		},
		"empty":             {in: "", err: true},
		"cut short":         {in: "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll", err: true},
		"no hexadecimal":    {in: "UPID:pve1:x:00012345:386D4380:qmdestroy:101:root@pam:", err: true},
		"time out of range": {in: "UPID:pve1:1:1:FFFFFFFFFF:qmdestroy:101:root@pam:", err: true},
		"no node":           {in: "UPID::1:1:1:qmdestroy:101:root@pam:", err: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseUPID(tc.in)
			if (err != nil) != tc.err {
				t.Errorf("error %v", err)
			}
			same(t, "parsed", tc.want, got)
		})
	}
}

func FuzzParseUPID(f *testing.F) {
	f.Add(testUPID)
	f.Add("UPID:n:1:2:3:imgcopy::root@pam:")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseUPID(s)
		if err != nil {
			return
		}
		if u.Node == "" || u.Type == "" || u.Raw != s || strings.Contains(u.ID, ":") {
			t.Errorf("%q is read as %+v", s, u)
		}
		if path := u.Path("status"); strings.Count(path, "/") != 5 {
			t.Errorf("%q leads to %s", s, path)
		}
	})
}
