package talosapi_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

const system, inContainerd = constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD

// lines are the lines of a log, without following it.
func lines(t *testing.T, c *client.Client, namespace string, driver common.ContainerDriver, id string, tail int32) ([]string, error) {
	t.Helper()
	s, err := c.Logs(t.Context(), namespace, driver, id, false, tail)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for {
		piece, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, strings.TrimSuffix(string(piece.GetBytes()), "\n"))
	}
}

func TestLogs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		c := l.extended()
		all, err := lines(t, c, system, inContainerd, "machined", -1)
		if err != nil || !strings.HasSuffix(all[0], " initialize sequence: 8 phase(s)") {
			t.Fatalf("machined: %q, %v", all, err)
		}
		last, err := lines(t, c, system, inContainerd, "machined", 2)
		if diff := cmp.Diff(all[len(all)-2:], last); diff != "" || err != nil {
			t.Errorf("the last two lines (-want +got):\n%s%v", diff, err)
		}
		pod := "kube-system/kube-apiserver-cp1"
		_, err = lines(t, c, constants.K8sContainerdNamespace, common.ContainerDriver_CRI, pod+":nonsense", -1)
		requireError(t, "no container", err, codes.Unknown, "not found")
		_, err = lines(t, c, "", common.ContainerDriver_CRI, pod, -1)
		requireError(t, "no namespace", err, codes.InvalidArgument, "namespace can't be empty")
		registered, err := c.LogsContainers(t.Context())
		if err != nil || !slices.Contains(registered.GetMessages()[0].GetIds(), "ext-guest") {
			t.Errorf("registered logs %v, %v", registered, err)
		}
		follow, err := c.Logs(t.Context(), system, inContainerd, "machined", true, 0)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.ServiceRestart(t.Context(), "kubelet"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"(Stopping): Sending SIGTERM to task", "(Finished): Service finished successfully", "(Preparing): Running pre state",
			"(Running): Started task kubelet", "(Running): Health check successful",
		} {
			piece, err := follow.Recv()
			if err != nil || !strings.Contains(string(piece.GetBytes()), " service[kubelet]"+want) {
				t.Errorf("followed: %q, %v; want %q", piece.GetBytes(), err, want)
			}
		}
	})
}

// extended is a running control plane with one extension's service; the client is its
// administrator's.
func (l *lab) extended() *client.Client {
	l.t.Helper()
	img := version("old", "v1.14.1")
	img.Extensions = append(img.Extensions, artefact.Extension{
		Name: "guest", Version: "v1", Files: map[string][]byte{constants.ExtensionServiceConfigPath + "/qemu.yaml": []byte("name: guest\ncontainer: {entrypoint: ./guest}\n")},
	})
	_, c := l.node(img)
	return c
}
