package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// gateTroubles are refusals before anything is touched.
func gateTroubles() []trouble {
	return []trouble{
		{
			name: "a gate of the user's own does not hold", code: 4,
			roll: patient + "\n  gates: [{description: the vault is well, apiVersion: example.com/v1, kind: Vault, expr: \"status.health == 'OK'\", timeout: 4s, when: both}]",
			begins: func(s *scene) func() {
				remove := s.defineVaults()
				s.vault("DEGRADED")
				return remove
			},
			says:  []string{"the vault is well", "DEGRADED"},
			after: (*scene).serves,
		},
		{
			name: "no controller would bring a pod back", roll: soon, code: 4,
			begins: func(s *scene) func() {
				pods := s.plane.Client.CoreV1().Pods("default")
				_, err := pods.Create(s.t.Context(), &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
					Spec: corev1.PodSpec{
						NodeSelector: map[string]string{corev1.LabelHostname: target},
						Containers:   []corev1.Container{{Name: "bare", Image: "registry.k8s.io/e2e-test-images/agnhost"}},
					},
				}, metav1.CreateOptions{})
				s.check(err)
				s.until("the pod is on its node", func() bool {
					p, err := pods.Get(s.t.Context(), "bare", metav1.GetOptions{})
					return err == nil && p.Spec.NodeName == target
				})
				return func() { s.check(pods.Delete(s.t.Context(), "bare", now)) }
			},
			says:  []string{"no controller would bring these pods back: default/bare", "roll.drain.force"},
			after: (*scene).serves,
		},
	}
}

var vaults = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "vaults"}

func (s *scene) dynamic() *dynamic.DynamicClient {
	s.t.Helper()
	c, err := dynamic.NewForConfig(s.plane.Admin)
	s.check(err)
	return c
}

// defineVaults makes the API server serve a custom resource with a status.
func (s *scene) defineVaults() (ends func()) {
	s.t.Helper()
	definitions := s.dynamic().Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Create(s.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "vaults.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "vaults", "singular": "vault", "kind": "Vault", "listKind": "VaultList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	s.check(err)
	s.until("vaults are served", func() bool {
		_, err := s.dynamic().Resource(vaults).List(s.t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return func() { s.check(definitions.Delete(s.t.Context(), "vaults.example.com", metav1.DeleteOptions{})) }
}

// vault makes one with that health.
func (s *scene) vault(health string) {
	s.t.Helper()
	made, err := s.dynamic().Resource(vaults).Namespace("default").Create(s.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Vault", "metadata": map[string]any{"name": "crown"},
	}}, metav1.CreateOptions{})
	s.check(err)
	made.Object["status"] = map[string]any{"health": health}
	_, err = s.dynamic().Resource(vaults).Namespace("default").UpdateStatus(s.t.Context(), made, metav1.UpdateOptions{})
	s.check(err)
}
