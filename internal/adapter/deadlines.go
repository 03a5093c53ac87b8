package adapter

import "container/heap"

// deadlines orders what waits for time to pass. It is a container/heap.
type deadlines []*entry

func (h deadlines) Len() int           { return len(h) }
func (h deadlines) Less(i, j int) bool { return h[i].due < h[j].due }
func (h deadlines) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

// Push is heap's.
func (h *deadlines) Push(x any) {
	e := x.(*entry)
	e.heap = len(*h)
	*h = append(*h, e)
}

// Pop is heap's.
func (h *deadlines) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.heap = -1
	return e
}

// put sets or moves the deadline of e.
func (h *deadlines) put(e *entry) {
	if e.heap >= 0 {
		heap.Fix(h, e.heap)
	} else {
		heap.Push(h, e)
	}
}

func (h *deadlines) drop(e *entry) {
	if e.heap >= 0 {
		heap.Remove(h, e.heap)
	}
}
