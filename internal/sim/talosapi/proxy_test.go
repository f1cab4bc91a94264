package talosapi_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
)

// hostname is the name of the machine that answers.
func hostname(ctx context.Context, c *client.Client) (string, error) {
	r, err := get[*network.HostnameStatus](ctx, c, network.NewHostnameStatus(network.NamespaceName, network.HostnameID).Metadata())
	if err != nil {
		return "", err
	}
	return r.TypedSpec().Hostname, nil
}

func TestCallsArePassedOn(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		q.worker()
		q.running(workerAddr)
		reader := q.client(address(1), role.Reader)
		for target, want := range map[string]string{address(1): "cp1", address(2): "cp2", workerAddr: "wk1", "wk1": "wk1"} {
			got, err := hostname(client.WithNode(t.Context(), target), reader)
			if err != nil || got != want {
				t.Errorf("%s: %q, %v, want %q", target, got, err, want)
			}
		}
		_, err := reader.Version(client.WithNode(t.Context(), "127.42.7.99"))
		requireError(t, "nobody there", err, codes.Unavailable, "no route to host")
		_, err = reader.Version(client.WithNode(t.Context(), "nobody"))
		requireError(t, "no such name", err, codes.Internal, `invalid target "nobody"`)

		worker := q.client(workerAddr, role.Admin)
		if got, err := hostname(client.WithNode(t.Context(), workerAddr), worker); err != nil || got != "wk1" {
			t.Errorf("a worker of itself: %q, %v", got, err)
		}
	})
}

func TestAnswersAreJoined(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		//lint:ignore SA1019 it is under test
		ctx := client.WithNodes(t.Context(), address(1), address(2), "127.42.7.99")
		answer, err := q.admin(1).MachineClient.Hostname(ctx, &emptypb.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range answer.GetMessages() {
			md := m.GetMetadata()
			//lint:ignore SA1019 answers are joined by it
			got = append(got, fmt.Sprintf("%s %s failed=%v", md.GetHostname(), m.GetHostname(), md.GetError() != ""))
		}
		want := []string{address(1) + " cp1 failed=false", address(2) + " cp2 failed=false", "127.42.7.99  failed=true"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		_, err = hostname(ctx, q.admin(1))
		requireError(t, "resources of several machines", err, codes.InvalidArgument, "one-2-many proxying is not supported for method /cosi.resource.State/Get")
	})
}

func TestResetOfStateLeadsToMaintenance(t *testing.T) {
	inQuorum(t, 2, func(t *testing.T, q *quorum) {
		c := q.admin(2)
		err := c.ResetGeneric(t.Context(), &machineapi.ResetRequest{SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "NONE", Wipe: true}}})
		requireError(t, "no such volume", err, codes.Unknown, `failed to get volume status with label "NONE"`)
		err = c.ResetGeneric(t.Context(), &machineapi.ResetRequest{UserDisksToWipe: []string{"/dev/vda"}})
		requireError(t, "the system disk", err, codes.Unknown, "reset user disk failed: device /dev/vda is the system disk")
		if err := c.ResetGeneric(t.Context(), &machineapi.ResetRequest{
			Graceful: true, Reboot: true, SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "STATE", Wipe: true}},
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want(t, "members", q.members(), "cp1")
		apply(t, q.maintained(address(2)), q.conf("cp2"))
		q.running(address(2))
		want(t, "members", q.members(), "cp1 cp2")
		q.reboot(q.admin(2), func() error { return q.admin(2).Reboot(t.Context()) }) // the configuration is kept
	})
}
