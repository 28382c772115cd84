-- bound: the bindings that are noted with a queue (bound.lua): exchange, routing key, pattern and queue of each.
local function bindings_of(rules)
  local found = {}
  for _, field in ipairs(call('HKEYS', rules)) do
    if string.sub(field, 1, 6) == 'bound ' then
      found[#found + 1] = string.sub(field, 7)
    end
  end
  return found
end
