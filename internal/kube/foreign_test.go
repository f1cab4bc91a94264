package kube_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/kube"
)

// Everything that Kubernetes and its objects say becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	quoted, err := json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f")
	if err != nil {
		t.Fatal(err)
	}
	evil := string(quoted)
	refusal := func(code, reason string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","message":` + evil + `,"reason":"` + reason + `","code":` + code + `}`
	}
	owners := func(c *kube.Client) (string, error) { _, err := c.OtherOwners(t.Context()); return "", err }
	for name, c := range map[string]struct {
		path string
		page page
		ask  func(*kube.Client) (string, error)
	}{
		"forbidden":    {"/apis/upgrade.cattle.io/v1/plans", page{403, refusal("403", "Forbidden")}, owners},
		"unauthorized": {"/apis/upgrade.cattle.io/v1/plans", page{401, refusal("401", "Unauthorized")}, owners},
		"broken":       {"/apis/upgrade.cattle.io/v1/plans", page{400, refusal("400", "BadRequest")}, owners},
		"volume attachment": {
			"/apis/storage.k8s.io/v1/volumeattachments",
			page{200, `{"kind":"VolumeAttachmentList","apiVersion":"storage.k8s.io/v1","items":[{"metadata":{"name":"a"},"spec":{"attacher":"x","nodeName":"wk1","source":{}},"status":{"attached":true,"detachError":{"message":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				volumes, err := c.AttachedVolumes(t.Context(), "wk1")
				return volumes[0].Trouble, err
			},
		},
		"gate": {
			"/api/v1/nodes",
			page{200, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":` + evil + `,"annotations":{"note":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				judged, err := c.Judge(t.Context(), cluster.ObjectGate{APIVersion: "v1", Kind: "Node", Expr: `metadata.annotations.note == "fine"`})
				if err != nil {
					return "", err
				}
				return judged.Failing[0].Name + ": " + judged.Failing[0].Why, nil
			},
		},
		"waiting container": {
			"/api/v1/namespaces/kube-system/pods",
			page{200, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p","annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"containers":[]},"status":{"containerStatuses":[{"state":{"waiting":{"reason":"CrashLoopBackOff","message":` + evil + `}}}]}}]}`},
			func(c *kube.Client) (string, error) {
				pods, err := c.StaticPods(t.Context())
				return pods[0].Why, err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pages := finePages()
			pages["/api/v1"] = page{200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","verbs":["list"]}]}`}
			pages[c.path] = c.page
			text, err := c.ask(serve(t, pages))
			if err != nil {
				text = err.Error()
			}
			if !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
				t.Errorf("%q", text)
			}
		})
	}
}
