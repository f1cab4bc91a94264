package kube

import (
	"sync"

	"k8s.io/klog/v2"
)

// quiet keeps client-go from writing to our stderr: when it is throttled or told to
// retry, it logs through klog, whose logger is shared by the process. What concerns
// the user is in the errors, which we translate. The zero Logger drops everything.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })
