package kubeapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// asTable is what kubectl get asks for.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// show is a table as kubectl prints it, without the columns of -o wide.
func show(t *metav1.Table) (lines []string) {
	header := []string{}
	for _, c := range t.ColumnDefinitions {
		if c.Priority == 0 {
			header = append(header, c.Name)
		}
	}
	lines = append(lines, strings.Join(header, "|"))
	for _, row := range t.Rows {
		cells := []string{}
		for i, c := range t.ColumnDefinitions {
			if c.Priority == 0 {
				cells = append(cells, fmt.Sprint(row.Cells[i]))
			}
		}
		lines = append(lines, strings.Join(cells, "|"))
	}
	return lines
}

func tableOf(t *testing.T, c *kubernetes.Clientset, path, accept string) (*metav1.Table, error) {
	t.Helper()
	answer := c.CoreV1().RESTClient().Get().RequestURI(path).SetHeader("Accept", accept).Do(t.Context())
	b, _ := answer.Raw()
	if err := answer.Error(); err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(b, table); err != nil {
		t.Fatal(err)
	}
	return table, nil
}

// TestTables: a client that prefers tables gets them, with the columns of the kind.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		r := widgets(false)
		l.Define(r)
		if _, err := l.Store().Create(t.Context(), r.GroupVersionResource, widget("one", 1)); err != nil {
			t.Fatal(err)
		}
		c := l.client(t, "system:masters")
		deploy(t, c, "web", 1)
		time.Sleep(20 * time.Second)
		for path, want := range map[string][]string{
			"/api/v1/nodes":     {"Name|Status|Roles|Age|Version", "wk1|Ready|<none>|20s|v1.35.4"},
			"/api/v1/nodes/wk1": {"Name|Status|Roles|Age|Version", "wk1|Ready|<none>|20s|v1.35.4"},
			"/apis/apps/v1/namespaces/default/deployments":        {"Name|Ready|Up-to-date|Available|Age", "web|1/1|1|1|20s"},
			"/apis/example.org/v1beta1/widgets":                   {"Name|Age", "one|20s"},
			"/apis/storage.k8s.io/v1/volumeattachments":           {"Name|Attacher|PV|Node|Attached|Age"},
			"/apis/coordination.k8s.io/v1/leases":                 {"Name|Holder|Age", "wk1|wk1|20s"},
			"/apis/rbac.authorization.k8s.io/v1/clusterroles":     {"Name|Created At", "flannel|2000-01-01T00:00:00Z", "system:coredns|2000-01-01T00:00:00Z", "system:talos-nodes|2000-01-01T00:00:00Z"},
			"/api/v1/namespaces?fieldSelector=metadata.name%3Dx":  {"Name|Status|Age"},
			"/api/v1/events?fieldSelector=involvedObject.name%3D": {"Last Seen|Type|Reason|Object|Message"},
		} {
			table, err := tableOf(t, c, path, asTable)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			if diff := cmp.Diff(want, show(table)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		}
		for include, want := range map[string]string{
			"": "PartialObjectMetadata", "Metadata": "PartialObjectMetadata", "Object": "Node", "None": "",
		} {
			table, err := tableOf(t, c, "/api/v1/nodes?includeObject="+include, asTable)
			if err != nil {
				t.Fatal(err)
			}
			var row struct{ Kind string }
			if raw := table.Rows[0].Object.Raw; len(raw) > 0 && json.Unmarshal(raw, &row) != nil || row.Kind != want {
				t.Errorf("includeObject=%s: %s", include, raw)
			}
		}
		_, err := tableOf(t, c, "/api/v1/nodes?includeObject=All", asTable)
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "Unable to convert to Table as requested: includeObject") {
			t.Errorf("an unknown includeObject: %v", err)
		}
		plain, err := tableOf(t, c, "/api/v1/nodes", "application/json,"+asTable)
		if err != nil || plain.Kind != "NodeList" {
			t.Errorf("objects were preferred, got a %s, %v", plain.Kind, err)
		}
	})
}

// TestWatchTables: kubectl get --watch gets the columns once, and a row per change.
func TestWatchTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		c := l.client(t, "system:masters")
		time.Sleep(20 * time.Second)
		body, err := c.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes?watch=true&timeoutSeconds=60").SetHeader("Accept", asTable).Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		go l.NodeDown(node("wk1", 0).UUID)
		var got []string
		for lines := bufio.NewScanner(body); lines.Scan(); {
			var e struct {
				Type   string
				Object metav1.Table
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s %d columns: %v", e.Type, len(e.Object.ColumnDefinitions), e.Object.Rows[0].Cells[:3]))
		}
		want := []string{"ADDED 10 columns: [wk1 Ready <none>]", "MODIFIED 0 columns: [wk1 Ready <none>]", "MODIFIED 0 columns: [wk1 NotReady <none>]"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
