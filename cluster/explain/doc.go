// Package explain says why a plan treats one node as it does: what is wanted beside what was
// found, what speaks against each strategy, and the steps to come. See [Explain] and [Explanation].
package explain
