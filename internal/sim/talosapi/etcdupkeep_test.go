package talosapi_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func TestEtcdUpkeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQuorum(t, 3)
		q.fw.BreakEtcd(9002, talosapi.EtcdFault{NoSpace: true})
		time.Sleep(time.Second)
		operator := q.client(address(1), role.Operator)
		if _, err := q.client(address(1), role.Reader).EtcdAlarmDisarm(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a reader's disarm: %v", err)
		}
		disarmed, err := operator.EtcdAlarmDisarm(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if list := disarmed.GetMessages()[0].GetMemberAlarms(); len(list) != 1 || list[0].GetMemberId() != q.id("cp2") {
			t.Errorf("disarmed %v", list)
		}
		left, err := operator.EtcdAlarmList(t.Context())
		if err != nil || len(left.GetMessages()[0].GetMemberAlarms()) > 0 {
			t.Errorf("alarms %v, %v", left, err)
		}
		if _, err := operator.EtcdDefragment(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
