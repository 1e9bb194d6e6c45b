"""Least-cost flow in whole numbers. One rule: among equal answers it always gives the same one.

Used by `racks`, where what goes where is a trade of costs. Shortest distances first (Dijkstra with potentials), then as
much flow as the shortest ways carry at once, so that there are as many rounds as there are different costs, not as
there are units. All costs are 0 or more.
"""

from __future__ import annotations

from heapq import heappop, heappush

_FAR = 1 << 200


class Flow:
    """A network; edges are numbered, and edge ^ 1 is the way back."""

    def __init__(self, nodes: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        self.to: list[int] = []
        self.room: list[int] = []
        self.cost: list[int] = []

    def edge(self, start: int, end: int, room: int, cost: int) -> int:
        number = len(self.to)
        self.out[start].append(number)
        self.out[end].append(number + 1)
        self.to += (end, start)
        self.room += (room, 0)
        self.cost += (cost, -cost)
        return number

    def used(self, edge: int) -> int:
        return self.room[edge ^ 1]

    def run(self, source: int, sink: int) -> int:
        """Send as much as can be sent at the least cost; how much that was."""
        height = [0] * len(self.out)
        sent = 0
        while self._raise(height, source, sink):
            while levels := self._levels(height, source, sink):
                sent += self._push(height, levels, source, sink)
        return sent

    def _raise(self, height: list[int], source: int, sink: int) -> bool:
        """New potentials, by distance from the source; False when the sink cannot be reached."""
        far = [_FAR] * len(self.out)
        far[source] = 0
        queue = [(0, source)]
        while queue:
            distance, node = heappop(queue)
            if distance > far[node]:
                continue
            base = distance + height[node]
            for edge in self.out[node]:
                if self.room[edge]:
                    end = self.to[edge]
                    there = base + self.cost[edge] - height[end]
                    if there < far[end]:
                        far[end] = there
                        heappush(queue, (there, end))
        limit = far[sink]
        if limit == _FAR:
            return False
        for node, distance in enumerate(far):
            height[node] += min(distance, limit)
        return True

    def _levels(self, height: list[int], source: int, sink: int) -> list[int] | None:
        """Steps from the source over edges that cost nothing now; None when the sink is not reached."""
        levels = [-1] * len(self.out)
        levels[source] = 0
        row = [source]
        while row and levels[sink] < 0:
            following: list[int] = []
            for node in row:
                for edge in self.out[node]:
                    end = self.to[edge]
                    if levels[end] < 0 and self.room[edge] and height[node] + self.cost[edge] == height[end]:
                        levels[end] = levels[node] + 1
                        following.append(end)
            row = following
        return levels if levels[sink] >= 0 else None

    def _push(self, height: list[int], levels: list[int], source: int, sink: int) -> int:
        """Fill all ways that lead one level down with every step; how much went through."""
        at = [0] * len(self.out)
        path: list[int] = []
        node, sent = source, 0
        while True:
            if node == sink:
                amount = min(self.room[edge] for edge in path)
                for edge in path:
                    self.room[edge] -= amount
                    self.room[edge ^ 1] += amount
                sent += amount
                first = next(i for i, edge in enumerate(path) if not self.room[edge])
                node = self.to[path[first] ^ 1]
                del path[first:]
                continue
            edges = self.out[node]
            while at[node] < len(edges):
                edge = edges[at[node]]
                end = self.to[edge]
                free = self.room[edge] and levels[end] == levels[node] + 1
                if free and height[node] + self.cost[edge] == height[end]:
                    break
                at[node] += 1
            else:
                if not path:
                    return sent
                node = self.to[path.pop() ^ 1]
                at[node] += 1
                continue
            path.append(edge)
            node = end
