-- upcoming: one page of what waits, soonest first, by id within one moment; changes nothing.
-- KEYS: bodies timelines...
-- ARGV: limit, after_due, after_id (the last item of the page before; '-inf' and '' for the first page)
-- RETURNS: four per item: id, due, level, body
-- RULES: 2
local bodies = KEYS[1]
local timelines = {unpack(KEYS, 2)}
local limit, after_due, after_id = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local call = redis.call

-- Byte order, as in a sorted set; Lua's own comparison follows the server's locale.
local function before(a, b)
  for at = 1, math.min(#a, #b) do
    local left, right = string.byte(a, at), string.byte(b, at)
    if left ~= right then
      return left < right
    end
  end
  return #a < #b
end

-- The rank of the first item after the page before: within one moment the ids ascend, so halving finds it, also if
-- the item itself is gone and however many there are.
local function first_rank(key)
  local low = call('ZCOUNT', key, '-inf', '(' .. after_due)
  local high = low + call('ZCOUNT', key, after_due, after_due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(after_id, call('ZRANGE', key, middle, middle)[1]) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local pages, heads = {}, {}
for position, key in ipairs(timelines) do
  local first = after_due == '-inf' and 0 or first_rank(key)
  pages[position] = limit > 0 and call('ZRANGE', key, first, first + limit - 1, 'WITHSCORES') or {}
  heads[position] = 1
end

-- The level whose next item comes first.
local function soonest()
  local best, best_id, best_due
  for position, page in ipairs(pages) do
    local id, due = page[heads[position]], tonumber(page[heads[position] + 1])
    if id and (not best or due < best_due or (due == best_due and before(id, best_id))) then
      best, best_id, best_due = position, id, due
    end
  end
  return best
end

local answer = {}
for _ = 1, limit do
  local position = soonest()
  if not position then
    break
  end
  local page, head, at = pages[position], heads[position], #answer
  heads[position] = head + 2
  answer[at + 1], answer[at + 2], answer[at + 3] = page[head], page[head + 1], position - 1
  answer[at + 4] = call('HGET', bodies, page[head]) or ''
end
return answer
