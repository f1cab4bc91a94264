package api

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

func TestHints(t *testing.T) {
	t.Parallel()
	const (
		quorum  = "without quorum nothing can be written to /etc/pve"
		storage = "see what is wrong with that storage on its node"
		killed  = "the task's worker was killed, or its node went down"
	)
	cases := map[string]struct {
		err  error
		want string
	}{
		"quorum is asked for first":   {&Error{Method: "POST", Status: 500, Reason: "cluster not ready - no quorum?"}, quorum},
		"a lock without quorum":       {&Error{Method: "PUT", Status: 500, Message: "cfs-lock 'file-user_cfg' error: no quorum!\n"}, quorum},
		"a write without quorum":      {&TaskError{Exit: "unable to open file '/etc/pve/nodes/pve1/qemu-server/1.conf.tmp.9' - Permission denied"}, quorum},
		"a file of another directory": {&TaskError{Exit: "unable to open file '/mnt/pve/x/1.raw' - Permission denied"}, ""},
		"a missing directory":         {&TaskError{Exit: "unable to activate storage 'fast' - directory '/mnt/fast' does not exist or is unreachable"}, storage},
		"an unavailable share":        {&Error{Method: "GET", Status: 500, Reason: "storage 'nfs' is not online"}, storage},
		"a killed worker":             {&TaskError{Exit: "unexpected status"}, killed},
		"anything else":               {&TaskError{Exit: "bridge 'vmbr9' does not exist"}, ""},
	}
	c := &Conn{TokenID: "u@pve!t"}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(fault.Hints(c.Explain(tc.err)), "\n")
			if tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
				t.Errorf("hint %q, want %q", got, tc.want)
			}
		})
	}
}
