package talos

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Everything that a machine says in an answer becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	const evil = "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"
	etcd := func(state, told string) []*machineapi.ServiceInfo {
		return []*machineapi.ServiceInfo{{Id: "etcd", State: state, Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{{Msg: told}}}}}
	}
	reboot := func(t *testing.T, c *Client) string { return said(c.Reboot(t.Context(), nodeAddr, nodeUUID, "")) }
	save := func(t *testing.T, c *Client) string {
		return said(c.EtcdSnapshot(t.Context(), nodeAddr, 0, &strings.Builder{}))
	}
	install := func(t *testing.T, c *Client) string {
		var told []string
		_, err := c.Install(t.Context(), nodeAddr, nodeUUID, "installer", "", func(line string) { told = append(told, line) })
		return said(err) + " " + strings.Join(told, " ")
	}
	for name, c := range map[string]struct {
		node *fakeNode
		ask  func(*testing.T, *Client) string
	}{
		"status":          {&fakeNode{answer: status.Error(codes.Unknown, evil)}, reboot},
		"status, no more": {&fakeNode{answer: status.Error(codes.PermissionDenied, evil)}, reboot},
		"installer":       {&fakeNode{version: "v1.13.9", install: exits(1, evil)}, install},
		"service":         {&fakeNode{services: etcd("Failed", evil)}, save},
		"state":           {&fakeNode{services: etcd(evil, "")}, save},
		"snapshot": {&fakeNode{services: etcd("Running", ""), snapshot: func(s grpc.ServerStreamingServer[common.Data]) error {
			//lint:ignore SA1019 how apid reports an error within a stream
			return s.Send(&common.Data{Metadata: &common.Metadata{Error: evil}})
		}}, save},
		"etcd": {&fakeNode{services: etcd("Running", ""), status: &machineapi.EtcdMemberStatus{MemberId: 1, Errors: []string{evil}}}, func(t *testing.T, c *Client) string {
			st, err := c.EtcdStatus(t.Context(), nodeAddr)
			return said(err) + strings.Join(st.Errors, " ")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				text := c.ask(t, c.node.start(t))
				if !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
					t.Errorf("%q", text)
				}
			})
		})
	}
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
