package api

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestParseError(t *testing.T) {
	type row struct {
		status int
		line   string
		body   string
		want   Error
		text   string
	}
	must.Each(t, map[string]row{
		"message in both": {
			500, "500 storage 'x' does not exist", `{"data":null,"message":"storage 'x' does not exist\n"}`,
			Error{Status: 500, Reason: "storage 'x' does not exist", Message: "storage 'x' does not exist"},
			"POST /p: 500 storage 'x' does not exist",
		},
		"status line only": {
			401, "401 No ticket", "",
			Error{Status: 401, Reason: "No ticket"},
			"POST /p: 401 No ticket",
		},
		"no reason, as behind an HTTP/2 proxy": {
			500, "500", `{"message":"VM 110 is running - destroy failed\n","data":null}`,
			Error{Status: 500, Message: "VM 110 is running - destroy failed"},
			"POST /p: 500 VM 110 is running - destroy failed",
		},
		"neither": {500, "500 ", "", Error{Status: 500}, "POST /p: 500"},
		"parameters": {
			400, "400 Parameter verification failed.", `{"errors":{"scsi0":"bad\n","name":"worse"},"message":"Parameter verification failed.\n","data":null}`,
			Error{Status: 400, Reason: "Parameter verification failed.", Message: "Parameter verification failed.", Params: map[string]string{"scsi0": "bad", "name": "worse"}},
			"POST /p: 400 Parameter verification failed.: name: worse; scsi0: bad",
		},
		"plain text of the HTTP server": {
			501, "501 chunked transfer encoding not supported", "chunked transfer encoding not supported",
			Error{Status: 501, Reason: "chunked transfer encoding not supported"},
			"POST /p: 501 chunked transfer encoding not supported",
		},
		"plain text alone": {
			500, "500 ", "upload failed at AnyEvent.pm line 1370.\nmore\n",
			Error{Status: 500, Message: "upload failed at AnyEvent.pm line 1370."},
			"POST /p: 500 upload failed at AnyEvent.pm line 1370.",
		},
		"a proxy's page alone": {502, "502", "<html>", Error{Status: 502}, "POST /p: 502"},
		"a proxy's page":       {502, "502 Bad Gateway", "<html>", Error{Status: 502, Reason: "Bad Gateway"}, "POST /p: 502 Bad Gateway"},
	}, func(t *testing.T, tc row) {
		got := parseError("POST", "/p", tc.status, tc.line, []byte(tc.body))
		tc.want.Method, tc.want.Path = "POST", "/p"
		must.Equal(t, "parsed", &tc.want, got)
		must.Equal(t, "text", tc.text, got.Error())
	})
}

func TestSentinels(t *testing.T) {
	all := []error{cluster.ErrChanged, cluster.ErrLocked, cluster.ErrExists, cluster.ErrLostAnswer, cluster.ErrStorageBusy, ErrNoSpace, images.ErrNoStorage}
	type row struct {
		err  error
		want []error
	}
	must.Each(t, map[string]row{
		"config write":         {&Error{Method: "PUT", Status: 500, Reason: "checksum mismatch (file change by other user?)"}, []error{cluster.ErrChanged}},
		"move_disk":            {&Error{Method: "POST", Status: 500, Message: "VM 200: detected modified configuration - file changed by other user? Try again."}, []error{cluster.ErrChanged}},
		"task":                 {&TaskError{Exit: "VM 9: detected modified configuration - file changed by other user? Try again."}, []error{cluster.ErrChanged}},
		"locked":               {&Error{Method: "PUT", Status: 500, Message: "VM is locked (backup)"}, []error{cluster.ErrLocked}},
		"locked, in a task":    {&TaskError{Exit: "VM is locked (snapshot-delete)"}, []error{cluster.ErrLocked}},
		"upload's checksum":    {&TaskError{Exit: "checksum mismatch: got 'a' != expect 'b'"}, nil},
		"taken":                {&Error{Method: "POST", Status: 500, Reason: "unable to create VM 100 - VM 100 already exists on node 'pve1'"}, []error{cluster.ErrExists}},
		"taken by container":   {&TaskError{Exit: "unable to create VM 100 - CT 100 already exists on node 'pve1'"}, []error{cluster.ErrExists}},
		"gateway on a change":  {&Error{Method: "POST", Status: 595, Reason: "Connection refused"}, []error{cluster.ErrLostAnswer}},
		"gateway on a read":    {&Error{Method: "GET", Status: 595, Reason: "Connection refused"}, nil},
		"killed task":          {&TaskError{Exit: "unexpected status"}, []error{cluster.ErrLostAnswer}},
		"its log was lost":     {&TaskError{Exit: "unable to read tail (got 0 bytes)"}, []error{cluster.ErrLostAnswer}},
		"its log is missing":   {&TaskError{Exit: "unable to open file - No such file or directory"}, []error{cluster.ErrLostAnswer}},
		"no quorum":            {&TaskError{Exit: "unable to open file '/etc/pve/nodes/pve1/qemu-server/1.conf.tmp.9' - Permission denied"}, nil},
		"file system full":     {&TaskError{Exit: "qemu-img: /x: error while writing: No space left on device"}, []error{ErrNoSpace}},
		"volume group full":    {&TaskError{Exit: `lvcreate error: Volume group "pve" has insufficient free space (0 extents): 1280 required.`}, []error{ErrNoSpace}},
		"zfs full":             {&TaskError{Exit: "zfs error: cannot create 'rpool/x': out of space"}, []error{ErrNoSpace}},
		"unknown storage":      {&Error{Method: "GET", Status: 500, Reason: "storage 'nosuch' does not exist"}, []error{images.ErrNoStorage}},
		"another host's":       {&Error{Method: "GET", Status: 500, Reason: "storage 'only2' is not available on node 'pve1'"}, []error{images.ErrNoStorage}},
		"disabled storage":     {&Error{Method: "GET", Status: 500, Reason: "storage 'old' is disabled"}, []error{images.ErrNoStorage}},
		"zfs is busy":          {&TaskError{Exit: "zfs error: cannot rename 'rpool/data/vm-101-disk-0': dataset is busy"}, []error{cluster.ErrStorageBusy}},
		"zfs is slow":          {&TaskError{Exit: "command 'zfs rename rpool/data/vm-101-disk-0 rpool/data/vm-9001-disk-0' failed: got timeout"}, []error{cluster.ErrStorageBusy}},
		"zfs destroys nothing": {&TaskError{Exit: "zfs error: cannot destroy 'rpool/data/vm-101-disk-0': dataset is busy"}, nil},
		"zfs has no such":      {&TaskError{Exit: "zfs error: cannot open 'rpool/data/vm-101-disk-0': dataset does not exist"}, nil},
		"ceph is busy":         {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (16) Device or resource busy"}, []error{cluster.ErrStorageBusy}},
		"ceph does not answer": {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (110) Connection timed out"}, []error{cluster.ErrStorageBusy}},
		"ceph has no such":     {&TaskError{Exit: "could not rename image 'vm-101-disk-0' to 'vm-9001-disk-0': rbd: rename error: (2) No such file or directory"}, nil},
		"a file is busy":       {&TaskError{Exit: "rename '/mnt/pve/nfs/images/101/vm-101-disk-0.raw' to '/mnt/pve/nfs/images/9001/vm-9001-disk-0.raw' failed - Device or resource busy"}, []error{cluster.ErrStorageBusy}},
		"a file is elsewhere":  {&TaskError{Exit: "rename '/a/images/101/x.raw' to '/a/images/9001/x.raw' failed - Invalid cross-device link"}, nil},
		"list of tasks":        {&Error{Method: "POST", Status: 500, Message: "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout"}, []error{cluster.ErrLostAnswer}},
		"missing volume":       {&TaskError{Exit: "volume 'local:iso/x.iso' does not exist"}, nil},
		"parameter is at odds": {&Error{Method: "PUT", Status: 400, Params: map[string]string{"scsi0": "no space left on storage"}}, []error{ErrNoSpace}},
	}, func(t *testing.T, tc row) {
		for _, s := range all {
			must.Equal(t, s.Error(), slices.Contains(tc.want, s), errors.Is(tc.err, s))
		}
	})
}

func FuzzParseError(f *testing.F) {
	f.Add(400, "400 Parameter verification failed.", `{"errors":{"a":"b"},"message":"m"}`)
	f.Add(595, "595 Connection refused", "")
	f.Add(500, "", `{"message":{"a":[1]},"errors":{"x":null}}`)
	f.Fuzz(func(t *testing.T, status int, line, body string) {
		e := parseError("POST", "/p", status, line, []byte(body))
		if e.Error() == "" || e.Status != status {
			t.Errorf("lost: %+v", e)
		}
		e.Unwrap()
	})
}

func TestHints(t *testing.T) {
	const (
		quorum  = "without quorum nothing can be written to /etc/pve"
		storage = "see what is wrong with that storage on its node"
		killed  = "the task's worker was killed, or its node went down"
	)
	c := &Conn{TokenID: "u@pve!t"}
	type row struct {
		err  error
		want string
	}
	must.Each(t, map[string]row{
		"quorum is asked for first":   {&Error{Method: "POST", Status: 500, Reason: "cluster not ready - no quorum?"}, quorum},
		"a lock without quorum":       {&Error{Method: "PUT", Status: 500, Message: "cfs-lock 'file-user_cfg' error: no quorum!\n"}, quorum},
		"a write without quorum":      {&TaskError{Exit: "unable to open file '/etc/pve/nodes/pve1/qemu-server/1.conf.tmp.9' - Permission denied"}, quorum},
		"a file of another directory": {&TaskError{Exit: "unable to open file '/mnt/pve/x/1.raw' - Permission denied"}, ""},
		"a missing directory":         {&TaskError{Exit: "unable to activate storage 'fast' - directory '/mnt/fast' does not exist or is unreachable"}, storage},
		"an unavailable share":        {&Error{Method: "GET", Status: 500, Reason: "storage 'nfs' is not online"}, storage},
		"a killed worker":             {&TaskError{Exit: "unexpected status"}, killed},
		"anything else":               {&TaskError{Exit: "bridge 'vmbr9' does not exist"}, ""},
	}, func(t *testing.T, tc row) {
		got := strings.Join(fault.Hints(c.Explain(tc.err)), "\n")
		if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
			t.Errorf("hint %q, want %q", got, tc.want)
		}
	})
}

func TestParseUPID(t *testing.T) {
	type row struct {
		in   string
		want UPID
		err  bool
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, tc row) {
		got, err := ParseUPID(tc.in)
		must.Equal(t, "fails", tc.err, err != nil)
		must.Equal(t, "parsed", tc.want, got)
	})
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
